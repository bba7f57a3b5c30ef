"""The judgements of a step as they are handed out: a row for each value, and one summary of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trueline.analyze.compare.judge.step import Step, value_of
from trueline.analyze.compare.judge.values import NONFINITE, Compared
from trueline.analyze.compare.result import JUDGEMENTS, ComparedRow, StepSummary


def row_of(step: Step, compared: Compared) -> ComparedRow:
    """One value of ``step`` beside its twin, in texts and numbers."""
    mine, theirs, distance, expectation = compared.mine, compared.theirs, compared.distance, compared.expectation
    value = value_of(compared)
    nonfinite = distance is not None and distance.nonfinite_differ
    shown = None if distance is None or nonfinite else distance.rel
    return ComparedRow(
        step.step,
        step.rank,
        compared.place,
        None if mine is None else str(mine.site),
        None if theirs is None else str(theirs.site),
        compared.judgement,
        value.kind,
        value.api,
        "" if mine is None else mine.dtype,
        "" if theirs is None else theirs.dtype,
        value.shape,
        measured=shown,
        expected=None if expectation is None or shown is None else expectation.rel,
        times=compared.times,
        how="" if distance is None or shown is None else distance.how,
        note=compared.note or (NONFINITE if nonfinite else ""),
        where=step.frame(value),
        details=None if distance is None else distance.details,
    )


def summary_of(step: Step) -> StepSummary:
    """How the values of ``step`` compare, counted."""
    counts = Counter(row.judgement for row in step.rows)
    first = step.first
    return StepSummary(
        step=step.step,
        rank=step.rank,
        counts={name: counts[name] for name in JUDGEMENTS if counts[name]},
        first_site=None if first is None or first.mine is None else str(first.mine.site),
        largest_times=max((times for row in step.rows if (times := row.times) is not None), default=None),
        loss_rel=_loss_rel(step.rows),
    )


def _loss_rel(rows: Sequence[Compared]) -> float | None:
    """Of the last number that the forward pass returned and that has a gradient of one element: the loss."""
    for row in reversed(rows):
        value = row.mine
        if value is None or row.distance is None or value.shape != () or value.site.phase != "fwd":
            continue
        if value.returned and value.dtype.startswith(("float", "bfloat")):
            return row.distance.rel
    return None
