"""A run beside a reference, step by step: where they first differ by more than rounding explains."""

from __future__ import annotations

import gc
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from trueline.analyze.compare.arrange import Arrangement, arrange
from trueline.analyze.compare.expect.expectation import coarser
from trueline.analyze.compare.judge.difference import describe_difference
from trueline.analyze.compare.judge.distance import MAX_BYTES, Distance, stats_distance, tensor_distance
from trueline.analyze.compare.judge.first_cause import blame
from trueline.analyze.compare.judge.loss_gap import loss_curve, told_of_losses
from trueline.analyze.compare.judge.over_time import late_fault, with_late
from trueline.analyze.compare.judge.rows import row_of, summary_of
from trueline.analyze.compare.judge.step import Step
from trueline.analyze.compare.judge.values import Compared, Divergence, Measure
from trueline.analyze.compare.match.align import align
from trueline.analyze.compare.match.names import NameMap
from trueline.analyze.compare.merge.positions import UNORDERED
from trueline.analyze.compare.prefilter import differing_steps
from trueline.analyze.compare.result import Comparison, Judged, StepSummary
from trueline.analyze.recorded.step_values import Value
from trueline.analyze.recorded.tensors import Stored, layouts
from trueline.schema.finding import Finding, by_weight
from trueline.schema.stats import TensorStats
from trueline.schema.tolerance import Tolerance
from trueline.store.reader import Run

IN_DETAIL = 32
"""Steps of a rank that are looked at value by value, of those that differ first, and as many again of later ones."""

Heard = Callable[[int, int], None]
"""Told how many of how many steps are done."""


@contextmanager
def collected_later() -> Generator[None, None, None]:
    """Garbage is looked for afterwards: a comparison makes many small objects that last, and looking for cycles among
    them takes a fifth of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@collected_later()
def compare(
    run: str | os.PathLike[str] | Run,
    ref: str | os.PathLike[str] | Run,
    *,
    tolerance: Tolerance | None = None,
    names: NameMap | None = None,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    max_bytes: int = MAX_BYTES,
    heard: Heard | None = None,
) -> Comparison:
    """The first difference between two Runs that rounding does not explain, and a judgement of every pair of values.

    What rounding explains is derived from what was recorded, or taken from a ``tolerance`` that ``calibrate`` measured.
    ``names`` maps names of the run to those of the reference. ``steps`` and ``ranks`` choose; ``max_bytes`` of memory
    are taken to compare stored values. Raises ``RunError`` where there is no Run, ``CannotTell`` where nothing was
    recorded in both, ``AlignmentError`` where nothing of the two aligns.
    """
    mine, theirs = (each if isinstance(each, Run) else Run(each) for each in (run, ref))
    arrangements = arrange(mine, theirs, steps=steps, ranks=ranks, names=names)
    detailed = arrangements if steps is not None else telling(mine, theirs, arrangements)
    measure = measure_with(max_bytes, fingerprints=mine.manifest.fingerprint == theirs.manifest.fingerprint)
    judged: list[Step] = []
    for done, each in enumerate(detailed):
        if heard is not None:
            heard(done, len(detailed))
        moved = moved_since(mine, theirs, each.step - arrangements[0].step)
        step = _judged(mine, each, judged, names or NameMap(), measure=measure, tolerance=tolerance, moved=moved)
        judged.append(step)
    findings, first = blame(mine, theirs, judged)
    late = late_fault(judged, before=first)
    if late is not None:
        findings, first, judged = with_late(findings, late.finding), late.first, list(late.steps)
    parting, parted = _losses(mine, theirs, tolerance, findings) if steps is None else ([], [])
    return Comparison(
        run=mine.path,
        ref=theirs.path,
        findings=tuple(sorted([*findings, *parting], key=by_weight)),
        rows=[row_of(step, compared) for step in judged for compared in step.rows],
        steps=_summaries(arrangements, judged),
        first=None if first is None else _described(row_of(*first), first[1], max_bytes),
        missing=_missing(judged),
        notes=(*parted, *_notes(mine, theirs, arrangements, len(detailed))),
    )


def _judged(
    run: Run,
    each: Arrangement,
    earlier: Sequence[Step],
    names: NameMap,
    *,
    measure: Measure,
    tolerance: Tolerance | None,
    moved: float | None,
) -> Step:
    """A step of ``run`` judged, ``earlier`` ones being known; see ``Divergence``."""
    tainted = any(step.first is not None for step in earlier if step.step < each.step)
    before = next((step for step in earlier if (step.step, step.rank) == (each.step - 1, each.rank)), None)
    before = before if before is not None and before.updates_alike else None
    sides = each.read()
    alignment = align(*sides, names)
    divergence = Divergence(
        alignment,
        sides,
        measure=measure,
        tolerance=tolerance,
        moved=moved,
        tainted=tainted,
        retraced=before is not None,
    )
    return Step(run, each.step, each.rank, alignment, divergence.rows, before)


def _losses(
    mine: Run, theirs: Run, tolerance: Tolerance | None, findings: Sequence[Finding]
) -> tuple[list[Finding], list[str]]:
    """What the losses of all steps say, recorded value by value or not."""
    excused = any(finding.severity == "error" for finding in findings)
    return told_of_losses(loss_curve(mine), loss_curve(theirs), tolerance, excused=excused)


def telling(mine: Run, theirs: Run, arrangements: Sequence[Arrangement]) -> list[Arrangement]:
    """Those to be looked at value by value: the first ``IN_DETAIL`` that differ, and as many of the rest, with
    even gaps, for the growth of differences; all where there are few.
    """
    if len(arrangements) <= IN_DETAIL:
        return list(arrangements)
    if arrangements[0].rank is None:
        differing = list(arrangements)
    else:
        found = set(differing_steps(mine, theirs, steps={each.step for each in arrangements}))
        differing = [each for each in arrangements if (each.step, each.rank) in found] or [arrangements[0]]
    rest = differing[IN_DETAIL:]
    gap = max(-(-len(rest) // IN_DETAIL), 1)
    return [*differing[:IN_DETAIL], *rest[gap - 1 :: gap]]


def moved_since(mine: Run, theirs: Run, num_steps: int) -> float | None:
    """How far apart ``num_steps`` updates may have brought two elements of a parameter: two learning rates each.

    That is what updates of the size of the learning rate do when they go opposite ways, as Adam's may. 0 where neither
    Run knows its learning rate; None before any update.
    """
    if num_steps == 0:
        return None
    groups = [group for run in (mine, theirs) for env in run.env.values() for group in env.optimizer.get("groups", [])]
    rates = [float(group["lr"]) for group in groups if isinstance(group.get("lr"), int | float)]
    return 2 * num_steps * max(rates, default=0.0)


def measure_with(max_bytes: int, *, fingerprints: bool = True) -> Callable[[Value, Value], Distance]:
    """The distance of two values: by their statistics where these say that they are equal or nothing more was stored,
    else by the values themselves, whose elements need not be beside each other where they are ``UNORDERED`` or laid out
    otherwise: then by what is nearer. Without ``fingerprints`` those of the two sides say nothing about each other.
    """

    def measure(mine: Value, theirs: Value) -> Distance:
        distance = Distance(None, None, "statistics")
        if mine.stats is not None and theirs.stats is not None:
            one, other = mine.stats, theirs.stats
            if not fingerprints:
                one, other = replace(one, fingerprint=None), replace(other, fingerprint=None)
            width = mine.shape[-1] if mine.shape else 1
            distance = (
                stats_distance(one, other, rows=one.numel // max(width, 1))
                if one.summed and other.summed
                else checksum_distance(one, other)
            )
        if (distance.how == "fingerprint" and distance.equal) or mine.load is None or theirs.load is None:
            return distance
        exact, twin = nearest(mine.load(), theirs.load(), max_bytes=max_bytes)
        unordered = UNORDERED in mine.flags | theirs.flags or twin is None
        return min(distance, exact, key=_apart) if unordered and distance.rel is not None else exact

    return measure


def checksum_distance(mine: TensorStats, theirs: TensorStats) -> Distance:
    """What checksums alone tell: equal or not, and never by how much; nothing where one side has none."""
    prints = mine.fingerprint, theirs.fingerprint
    if mine.dtype != theirs.dtype or None in prints:
        return Distance(None, None, "fingerprint")
    equal = prints[0] == prints[1]
    return Distance(equal, 0.0 if equal else None, "fingerprint", certain_rel=0.0 if equal else None)


def nearest(mine: Stored, theirs: Stored, *, max_bytes: int) -> tuple[Distance, Stored | None]:
    """The distance of two stored values in the layout in which they are nearest, and the second one in that; None where
    no layout of theirs is known to be that of the first.
    """
    twins = layouts(theirs, mine.shape)
    found = [tensor_distance(mine, each, max_bytes=max_bytes) for each in twins or [theirs]]
    best = min(range(len(found)), key=lambda place: _apart(found[place]))
    return found[best], twins[best] if twins else None


def _apart(distance: Distance) -> float:
    return math.inf if distance.rel is None else distance.rel


def _described(row: Judged, compared: Compared, max_bytes: int) -> Judged:
    """``row`` with what stored values show element by element, where both sides have them."""
    mine, theirs = compared.mine, compared.theirs
    if mine is None or theirs is None or mine.load is None or theirs.load is None:
        return row
    dtype = coarser(mine.dtype, theirs.dtype)
    one = mine.load()
    _, other = nearest(one, theirs.load(), max_bytes=max_bytes)
    told = {} if other is None else describe_difference(one, other, dtype=dtype, max_bytes=max_bytes)
    return replace(row, details={**(row.details or {}), **told})


def _summaries(arrangements: Sequence[Arrangement], judged: Sequence[Step]) -> list[StepSummary]:
    """One for each arrangement, in its order."""
    by_place = {(step.step, step.rank): summary_of(step) for step in judged}
    return [
        by_place.get((each.step, each.rank)) or StepSummary(each.step, each.rank, {}, detailed=False)
        for each in arrangements
    ]


def _missing(steps: Sequence[Step]) -> dict[str, int]:
    """How many values have no twin, by reason."""
    lonely = (row for step in steps for row in step.rows if row.lonely)
    return dict(Counter(row.note for row in lonely).most_common())


def _notes(mine: Run, theirs: Run, arrangements: Sequence[Arrangement], num_detailed: int) -> list[str]:
    notes = list(dict.fromkeys(each.note for each in arrangements if each.note))
    kinds = mine.manifest.fingerprint, theirs.manifest.fingerprint
    if kinds[0] != kinds[1]:
        notes.append(
            f"Fingerprints are of two kinds ({kinds[0]} and {kinds[1]}) and say nothing about each other: values are "
            "compared by what else was recorded."
        )
    left = len(arrangements) - num_detailed
    if left:
        notes.append(
            f"{left} of {len(arrangements)} recorded steps of a rank are equal, or differ after the first "
            f"{IN_DETAIL} that do, and were not looked at value by value; choose them with --step to have them so."
        )
    return [*notes, *(f"{run.path}: {problem}" for run in (mine, theirs) for problem in run.problems)]
