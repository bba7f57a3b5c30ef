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
    lone_changes: list[Changed] = []
    for indices in by_rank.values():
        unchanged: defaultdict[str, int] = defaultdict(int)
        changes: list[Changed] = []
        for before, after in pairwise(indices):
            # Steps in between that were not recorded have updates of their own.
            if steps[after].step == steps[before].step + 1:
                for name, change in _continuity(steps[before], steps[after], after):
                    if change is None:
                        unchanged[name] += 1
                    else:
                        changes.append(change)
        # A parameter that never held still is changed on purpose, or its last operation is not recorded.
        lone_changes += [change for change in changes if unchanged[change.name]]
    return sorted(lone_changes, key=lambda change: (steps[change.at].step, change.at))


def _continuity(before: Step, after: Step, at: int) -> Iterator[tuple[str, Changed | None]]:
    """Each parameter whose continuity is known in both runs, and its change; None where neither changed."""
    sides = [
        (_after_update([row.run_value for row in before.rows]), _at_start([row.run_value for row in after.rows])),
        (_after_update([row.ref_value for row in before.rows]), _at_start([row.ref_value for row in after.rows])),
    ]
    (result, start), (ref_result, ref_start) = sides
    for name in result.keys() & start.keys() & ref_result.keys() & ref_start.keys():
        is_kept, ref_is_kept = _is_equal(result[name], start[name]), _is_equal(ref_result[name], ref_start[name])
        if is_kept and ref_is_kept:
            yield name, None
        # A change in both runs is what the job does.
        elif is_kept != ref_is_kept:
            start_stats, result_stats = (ref_start[name], ref_result[name]) if is_kept else (start[name], result[name])
            distance = stats_distance(start_stats, result_stats, rows=1)
            rel = None if distance.nonfinite_differ else distance.rel
            yield name, Changed(at, name, in_reference=is_kept, rel=rel)


def _after_update(side: Iterable[Value | None]) -> dict[str, TensorStats]:
    """The result of the last recorded operation of an update, for each parameter that one wrote to."""
    values = _ordered(side)
    current = {value.root: value.site.name for value in values if value.site.phase == "param"}
    result_of_param: dict[str, TensorStats] = {}
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
            result_of_param[writes[key]] = value.stats
    return result_of_param


def _at_start(side: Iterable[Value | None]) -> dict[str, TensorStats]:
    """The parameters at the start of a step."""
    return {
        value.site.name: value.stats
        for value in _ordered(side)
        if value.site.phase == "param" and value.stats is not None
    }


def _ordered(side: Iterable[Value | None]) -> list[Value]:
    return sorted((value for value in side if value is not None), key=lambda value: value.index)


def _is_equal(stats: TensorStats, other_stats: TensorStats) -> bool:
    if stats.fingerprint is not None and other_stats.fingerprint is not None:
        return stats.fingerprint == other_stats.fingerprint
    # Sums and norms depend on the order of addition; these do not.
    return all(getattr(stats, name) == getattr(other_stats, name) for name in _EXACT)
