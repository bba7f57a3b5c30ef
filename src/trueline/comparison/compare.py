"""Compares a run with a reference, step by step: where they first differ by more than rounding explains."""

from __future__ import annotations

import functools
import gc
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

from trueline.comparison.arrange import Arrangement, arrange
from trueline.comparison.expect.rounding import coarser
from trueline.comparison.judgement.consequence import with_consequences, without_harmless
from trueline.comparison.judgement.first_cause import Conclusion, conclude, in_causal_order
from trueline.comparison.judgement.history.loss_gap import judge_losses, loss_curve, losses_by_rank
from trueline.comparison.judgement.history.over_time import late_fault
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.difference import describe_difference
from trueline.comparison.judgement.values.distance import MAX_BYTES
from trueline.comparison.judgement.values.judged_share import incomparable, judged_share, one_sided_calls
from trueline.comparison.judgement.values.measured_distance import measure_with, nearest
from trueline.comparison.judgement.values.value_judgement import DRAWN, NONFINITE, Compared, Divergence, Measure
from trueline.comparison.judgement.written_over import written_over
from trueline.comparison.match.names import NameMap
from trueline.comparison.merge.loss_scale import clipped_ratio, with_one_loss_scale
from trueline.comparison.not_repeating import not_repeating
from trueline.comparison.prefilter import differing_steps
from trueline.comparison.result import JUDGEMENTS, ComparedRow, Comparison, StepSummary
from trueline.schema.files.tolerance import Tolerance
from trueline.schema.finding import Finding
from trueline.store.reader import Run

STEPS_IN_DETAIL = 32
"""Steps of a rank that are compared value by value, of those that differ first, and as many again of later ones."""

Progress = Callable[[int, int], None]
"""Called with the number of steps that are done, and of all steps."""


@contextmanager
def without_garbage_collection() -> Generator[None, None, None]:
    """Turns the garbage collector off meanwhile: a comparison makes many small objects that last, and looking for
    cycles among them takes a fifth of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_garbage_collection()
def compare(
    run: str | os.PathLike[str] | Run,
    ref: str | os.PathLike[str] | Run,
    *,
    tolerance: Tolerance | None = None,
    names: NameMap | None = None,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Comparison:
    """The first difference between two Runs that rounding does not explain, and a judgement of every pair of values.

    What rounding explains is derived from what was recorded, or taken from a ``tolerance`` that ``calibrate`` measured.
    ``names`` maps names of the run to those of the reference. ``steps`` and ``ranks`` choose; ``max_bytes`` of memory
    are taken to compare stored values. Raises ``RunError`` where there is no Run, ``CannotTell`` where nothing was
    recorded in both, ``AlignmentError`` where nothing of the two aligns.
    """
    mine, theirs = (each if isinstance(each, Run) else Run(each) for each in (run, ref))
    arrangements = arrange(mine, theirs, steps=steps, ranks=ranks, names=names)
    recorded = arrangements if steps is None else arrange(mine, theirs, ranks=ranks, names=names)
    detailed = steps_in_detail(mine, theirs, recorded) if steps is None else with_steps_before(arrangements, recorded)
    measure = measure_with(max_bytes, fingerprints=mine.manifest.fingerprint == theirs.manifest.fingerprint)
    judged: list[Step] = []
    for done, each in enumerate(detailed):
        if progress is not None:
            progress(done, len(detailed))
        moved = update_distance(mine, theirs, each.step - recorded[0].step)
        step = _judged((mine, theirs), each, judged, measure=measure, tolerance=tolerance, moved=moved)
        judged.append(step)
    found = conclude(mine, theirs, judged, late_fault(judged))
    scale = judged[0].alignment.loss_scale
    loss_findings, loss_notes = _losses(mine, theirs, tolerance, found.findings, scale) if steps is None else ([], [])
    shown = [step for step in found.steps if steps is None or step.step in steps]
    rows_of = [[_row_of(step, compared) for compared in step.rows] for step in shown]
    rows = list(chain.from_iterable(rows_of))
    judged_of = judged_share(found.steps)
    # "Rounding explains it" is no answer where too little was judged.
    told = [each for each in found.findings if not (judged_of.lacking and each.code == "explained-by-rounding")]
    extra = [*written_over(shown, max_bytes=max_bytes), *not_repeating(rows, mine, theirs)]
    return Comparison(
        run=mine.path,
        ref=theirs.path,
        findings=tuple(in_causal_order([*told, *extra, *loss_findings])),
        rows=rows,
        steps=_with_losses(
            _finished(_summaries(arrangements, zip(shown, rows_of, strict=True)), mine, theirs), mine, theirs, scale
        ),
        first=None if found.first is None else _described(_row_of(*found.first), found.first[1], max_bytes),
        missing=_missing(rows),
        notes=(*loss_notes, *_remarks(shown), *_notes(mine, theirs, arrangements, len(shown)), *_before(found, shown)),
        judged=judged_of,
        one_sided=one_sided_calls(shown, rows),
    )


def _judged(
    runs: tuple[Run, Run],
    each: Arrangement,
    earlier: Sequence[Step],
    *,
    measure: Measure,
    tolerance: Tolerance | None,
    moved: float | None,
) -> Step:
    """A step of ``runs``, judged after ``earlier`` ones; see ``Divergence``."""
    tainted = any(_moves_apart(step) for step in earlier if step.step < each.step)
    before = next((step for step in earlier if (step.step, step.rank) == (each.step - 1, each.rank)), None)
    before = before if before is not None and before.equal_before_update else None
    alignment = with_one_loss_scale(each.read(), clipped_ratio(*runs, each.step, each.rank))
    judge = functools.partial(
        Divergence,
        alignment,
        measure=measure,
        tolerance=tolerance,
        moved=moved,
        tainted=tainted,
        same_update=before is not None,
    )
    divergence = judge()
    if divergence.has_multiples:
        divergence = judge(multiples=True)
    step = Step(runs[0], each.step, each.rank, alignment, without_harmless(divergence.rows), before, runs[1])
    rows = with_consequences(step.rows, step.rewired_rows)
    return step if rows is step.rows else replace(step, rows=rows)  # a new one has looked at nothing yet


def _moves_apart(step: Step) -> bool:
    """Whether its update had other gradients than rounding explains: something differs, or random numbers did."""
    return step.first is not None or bool(step.rewired_rows) or any(row.note == DRAWN for row in step.rows)


def _losses(
    mine: Run, theirs: Run, tolerance: Tolerance | None, findings: Sequence[Finding], scale: float
) -> tuple[list[Finding], list[str]]:
    """Findings and notes on the losses of all steps, whether or not these were recorded value by value; the run's have
    the ``scale`` of the loss, over that of the reference, that the update undoes.
    """
    has_errors = any(finding.severity == "error" for finding in findings)
    run = {step: loss / scale for step, loss in loss_curve(mine).items()}
    return judge_losses(run, loss_curve(theirs), tolerance, has_errors=has_errors)


def _with_losses(summaries: Sequence[StepSummary], mine: Run, theirs: Run, scale: float) -> list[StepSummary]:
    """``summaries`` with the difference of the losses that both runs recorded, where they did."""
    steps = {each.step for each in summaries}
    run, ref = losses_by_rank(mine, steps), losses_by_rank(theirs, steps)
    found: list[StepSummary] = []
    for each in summaries:
        one, other = run.get((each.step, each.rank)), ref.get((each.step, each.rank))
        if one is not None and other is not None and other != 0:
            found.append(replace(each, loss_rel=abs(one / scale - other) / abs(other)))
        else:
            found.append(each)
    return found


def steps_in_detail(mine: Run, theirs: Run, arrangements: Sequence[Arrangement]) -> list[Arrangement]:
    """Those that are compared value by value: the first ``STEPS_IN_DETAIL`` that differ, and as many of the rest at
    equal distances, to show how differences grow; all where there are few.
    """
    if len(arrangements) <= STEPS_IN_DETAIL:
        return list(arrangements)
    if arrangements[0].rank is None:
        differing = list(arrangements)
    else:
        found = set(differing_steps(mine, theirs, steps={each.step for each in arrangements}))
        differing = [each for each in arrangements if (each.step, each.rank) in found] or [arrangements[0]]
    rest = differing[STEPS_IN_DETAIL:]
    gap = max(-(-len(rest) // STEPS_IN_DETAIL), 1)
    return [*differing[:STEPS_IN_DETAIL], *rest[gap - 1 :: gap]]


def with_steps_before(chosen: Sequence[Arrangement], recorded: Sequence[Arrangement]) -> list[Arrangement]:
    """``chosen`` ones, and before them the first of ``recorded`` and the one just before each: what these left decides
    what may differ at a step, whether they are asked for or not.
    """
    steps = {each.step for each in chosen}
    needed = {*steps, *(step - 1 for step in steps)}
    if max(steps) > recorded[0].step:
        needed.add(recorded[0].step)
    return [each for each in recorded if each.step in needed]


def _before(found: Conclusion, shown: Sequence[Step]) -> list[str]:
    """Where the difference begins at a step before those that were chosen."""
    begin = min((step.step for step in shown), default=0)
    if found.first is None or found.first[0].step >= begin:
        return []
    return [f"The difference begins at step {found.first[0].step}, before the steps that were chosen."]


def update_distance(mine: Run, theirs: Run, num_steps: int) -> float | None:
    """How far apart ``num_steps`` updates may have brought two elements of a parameter: two learning rates each.

    That is what updates of the size of the learning rate do when they go opposite ways, as Adam's may. 0 where neither
    Run knows its learning rate; None before any update.
    """
    if num_steps == 0:
        return None
    groups = [group for run in (mine, theirs) for env in run.env.values() for group in env.optimizer.get("groups", [])]
    rates = [float(group["lr"]) for group in groups if isinstance(group.get("lr"), int | float)]
    return 2 * num_steps * max(rates, default=0.0)


def _described(row: ComparedRow, compared: Compared, max_bytes: int) -> ComparedRow:
    """``row`` with details of the difference element by element, where both sides stored the value."""
    mine, theirs = compared.run_value, compared.ref_value
    if mine is None or theirs is None or mine.load is None or theirs.load is None:
        return row
    dtype = coarser(mine.dtype, theirs.dtype)
    one = mine.load()
    _, other = nearest(one, theirs.load(), max_bytes=max_bytes)
    described = {} if other is None else describe_difference(one, other, dtype=dtype, max_bytes=max_bytes)
    return replace(row, details={**(row.details or {}), **described})


def _summaries(
    arrangements: Sequence[Arrangement], judged: Iterable[tuple[Step, Sequence[ComparedRow]]]
) -> list[StepSummary]:
    """One for each arrangement, in its order."""
    by_place = {(step.step, step.rank): _summary_of(step, rows) for step, rows in judged}
    return [
        by_place.get((each.step, each.rank)) or StepSummary(each.step, each.rank, {}, detailed=False)
        for each in arrangements
    ]


def _finished(summaries: Sequence[StepSummary], *runs: Run) -> list[StepSummary]:
    """``summaries``, of which those are marked that no run has a row of: no update ended such a step."""
    if not any(len(run.steps) for run in runs):
        return list(summaries)
    ended = {int(step) for run in runs for step in run.steps}
    return [replace(each, finished=each.step in ended) for each in summaries]


def _missing(rows: Sequence[ComparedRow]) -> dict[str, int]:
    """The number of values without a twin, by reason."""
    return dict(Counter([row.note for row in rows if row.site is None or row.ref_site is None]).most_common())


def _remarks(steps: Sequence[Step]) -> list[str]:
    """What was done where one run scales its loss, and why values were not compared that differ."""
    scales = list(dict.fromkeys(step.alignment.loss_scale for step in steps if step.alignment.loss_scale != 1.0))
    if not scales:
        return incomparable(steps)
    shown = ", then ".join(f"{scale:.6g}" for scale in scales[:3])
    return [
        f"The loss is scaled for the backward pass, and the update undoes it: gradients before the update are {shown} "
        "times those of the reference, and were divided by that before they were compared.",
        *incomparable(steps),
    ]


def _notes(mine: Run, theirs: Run, arrangements: Sequence[Arrangement], num_detailed: int) -> list[str]:
    notes = list(dict.fromkeys(each.note for each in arrangements if each.note))
    kinds = mine.manifest.fingerprint, theirs.manifest.fingerprint
    if kinds[0] != kinds[1]:
        notes.append(
            f"The Runs have fingerprints of different kinds ({kinds[0]} and {kinds[1]}), which cannot be compared: "
            "values are compared by what else was recorded."
        )
    left = len(arrangements) - num_detailed
    if left:
        notes.append(
            f"{left} of {len(arrangements)} recorded steps were not compared value by value: they are equal, or come "
            f"after the first {STEPS_IN_DETAIL} that differ. Choose such a step with --step to have it compared so."
        )
    return [*notes, *(f"{run.path}: {problem}" for run in (mine, theirs) for problem in run.problems)]


def _row_of(step: Step, compared: Compared) -> ComparedRow:
    """One value of ``step`` and its twin, as texts and numbers."""
    mine, theirs, distance, expectation = (
        compared.run_value,
        compared.ref_value,
        compared.distance,
        compared.expectation,
    )
    value = compared.value
    nonfinite = distance is not None and distance.nonfinite_differ
    shown = None if distance is None or nonfinite else distance.rel
    return ComparedRow(
        step.step,
        step.rank,
        compared.position,
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
        where=step.frame(value, of_reference=mine is None),
        details=None if distance is None else distance.details,
    )


def _summary_of(step: Step, rows: Sequence[ComparedRow]) -> StepSummary:
    """Counts of the judgements of ``step``, which has these ``rows``."""
    counts = Counter([row.judgement for row in rows])
    first = step.first
    return StepSummary(
        step=step.step,
        rank=step.rank,
        counts={name: counts[name] for name in JUDGEMENTS if counts[name]},
        first_site=None if first is None or first.run_value is None else str(first.run_value.site),
        largest_times=max((row.times for row in rows if row.times is not None), default=None),
        loss_rel=_loss_rel(step.rows),
    )


def _loss_rel(rows: Sequence[Compared]) -> float | None:
    """The relative difference of the loss: the last single number that the forward pass returned."""
    for row in reversed(rows):
        value = row.run_value
        if value is None or row.distance is None or value.shape != () or value.site.phase != "fwd":
            continue
        if value.returned and value.dtype.startswith(("float", "bfloat")):
            return row.distance.rel
    return None
