"""Parameters from one step to the next: what the update leaves is what the next step begins with, bit for bit.

That holds within each run by itself, whatever the other does and however far the two have come apart. Where a run
records its updates operation by operation, the last value that one of them left of a parameter is known, and so is the
value that the next step begins with. A parameter that is another one by then was changed by what is not recorded: a
checkpoint that was loaded, a synchronisation, a write to memory.

Jobs that change their parameters between steps on purpose do so in both runs. And an optimizer whose last operation is
not seen seems to change them between all steps. So a parameter is told of only where it changed in one run, not in the
other, and in neither at another step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trueline.analyze.compare.judge.distance import stats_distance
from trueline.analyze.compare.judge.step import Step
from trueline.analyze.recorded.step_values import Value
from trueline.schema.stats import TensorStats

_EXACT = ("numel", "dtype", "nan", "pos_inf", "neg_inf", "zero", "min", "max")
"""Statistics that are the same of the same bits, in whatever order numbers are added up."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A parameter that is not what the update before left of it, in the run (or in the reference alone): ``at`` is
    which of the steps that were given, ``rel`` the relative L2 difference to what was left, None where NaN or
    infinities came or went.
    """

    at: int
    name: str
    in_reference: bool
    rel: float | None


def changed_between_steps(steps: Sequence[Step]) -> list[Changed]:
    """Parameters that changed between two consecutive steps in one of the runs only, in the order of steps."""
    by_rank: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        by_rank[step.rank].append(index)
    found: list[Changed] = []
    for indices in by_rank.values():
        unchanged: defaultdict[str, int] = defaultdict(int)
        changes: list[Changed] = []
        for before, after in pairwise(indices):
            if steps[after].step == steps[before].step + 1:
                for name, change in _continuity(steps[before], steps[after], after):
                    if change is None:
                        unchanged[name] += 1
                    else:
                        changes.append(change)
        found += [change for change in changes if unchanged[change.name]]
    return sorted(found, key=lambda change: (steps[change.at].step, change.at))


def _continuity(before: Step, after: Step, at: int) -> Iterator[tuple[str, Changed | None]]:
    """Of each parameter that both runs carry over in a way that is seen: None where both do as they should."""
    sides = [
        (_after_update([row.mine for row in before.rows]), _at_start([row.mine for row in after.rows])),
        (_after_update([row.theirs for row in before.rows]), _at_start([row.theirs for row in after.rows])),
    ]
    (left, start), (ref_left, ref_start) = sides
    for name in left.keys() & start.keys() & ref_left.keys() & ref_start.keys():
        same, ref_same = _same(left[name], start[name]), _same(ref_left[name], ref_start[name])
        if same and ref_same:
            yield name, None
        elif same != ref_same:
            one, other = (ref_start[name], ref_left[name]) if same else (start[name], left[name])
            distance = stats_distance(one, other, rows=1)
            rel = None if distance.nonfinite_differ else distance.rel
            yield name, Changed(at, name, in_reference=same, rel=rel)


def _after_update(side: Iterable[Value | None]) -> dict[str, TensorStats]:
    """What the last recorded operation of an update left of each parameter that one wrote to."""
    values = _ordered(side)
    current = {value.root: value.site.name for value in values if value.site.phase == "param"}
    left: dict[str, TensorStats] = {}
    writes: dict[tuple[int, str, int, str], str] = {}
    for value in values:
        site = value.site
        if site.phase != "opt" or not site.name.endswith("_"):
            continue
        key = site.micro, site.name, site.call, site.slot.removeprefix("out" if value.returned else "in")
        if not value.returned and value.root in current:
            writes[key] = current[value.root]
        elif value.returned and key in writes and value.stats is not None:
            current[value.root] = writes[key]
            left[writes[key]] = value.stats
    return left


def _at_start(side: Iterable[Value | None]) -> dict[str, TensorStats]:
    """The parameters that a step begins with."""
    return {
        value.site.name: value.stats
        for value in _ordered(side)
        if value.site.phase == "param" and value.stats is not None
    }


def _ordered(side: Iterable[Value | None]) -> list[Value]:
    return sorted((value for value in side if value is not None), key=lambda value: value.index)


def _same(one: TensorStats, other: TensorStats) -> bool:
    if one.fingerprint is not None and other.fingerprint is not None:
        return one.fingerprint == other.fingerprint
    return all(getattr(one, name) == getattr(other, name) for name in _EXACT)
