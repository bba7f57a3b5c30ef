"""The next step starts with the result of the update, bit for bit: parameters that changed in between.

That holds within each run, whatever the other run does and however much the two differ. Where a run records its updates
operation by operation (an optimizer with ``foreach=False``), the last result of a parameter's update is known, and so
is the value at the start of the next step. If they differ, something that is not recorded changed the parameter: a
loaded checkpoint, a synchronisation, a write to memory.

Jobs that change their parameters between steps on purpose do so in both runs, and an optimizer whose last operation is
not recorded seems to change them between all steps. So a parameter is reported only where it changed in one run, not in
the other, and in neither at another step: as ``weight-differs``, however small the change, with a false-alarm rate of
0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.distance import stats_distance
from trueline.judge.recorded.step_values import Value
from trueline.schema.stats import TensorStats

_EXACT = ("numel", "dtype", "nan", "pos_inf", "neg_inf", "zero", "min", "max")
"""Statistics that equal bits have in common, in whatever order numbers are added up."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A parameter that changed since the update before, in the run (or only in the reference): ``at`` is the index of
    the step, ``rel`` the relative L2 difference to the result of that update, None where NaN or infinities came or
    went.
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
    """Each parameter whose continuity is known in both runs, and its change; None where neither changed."""
    sides = [
        (_after_update([row.run_value for row in before.rows]), _at_start([row.run_value for row in after.rows])),
        (_after_update([row.ref_value for row in before.rows]), _at_start([row.ref_value for row in after.rows])),
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
    """The result of the last recorded operation of an update, for each parameter that one wrote to."""
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
    """The parameters at the start of a step."""
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
