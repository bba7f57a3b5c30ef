"""Comparison of a run with a reference, step by step, up to the first difference that rounding does not explain."""

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
from trueline.comparison.judgement.values.compared import NONFINITE, Compared
from trueline.comparison.judgement.values.difference import describe_difference
from trueline.comparison.judgement.values.distance import MAX_BYTES
from trueline.comparison.judgement.values.excuses import DRAWN
from trueline.comparison.judgement.values.judged_share import incomparable, judged_share, one_sided_calls
from trueline.comparison.judgement.values.measured_distance import measure_with, nearest
from trueline.comparison.judgement.values.value_judgement import Divergence, Measure
from trueline.comparison.judgement.written_over import written_over
from trueline.comparison.match.names import NameMap
from trueline.comparison.merge.loss_scale import clipped_ratio, with_one_loss_scale
from trueline.comparison.not_repeating import not_repeating
from trueline.comparison.prefilter import differing_steps
from trueline.comparison.result import JUDGEMENTS, ComparedRow, Comparison, StepSummary
from trueline.judge.where import where_of
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import BITS
from trueline.schema.files.tolerance import Tolerance
from trueline.schema.finding import Finding
from trueline.store.reader import Run

STEPS_IN_DETAIL = 32
"""Steps of a rank that are compared value by value: of the first that differ, and as many again of later ones."""

Progress = Callable[[int, int], None]
"""Function of the number of finished steps and the number of all steps."""


@contextmanager
def without_garbage_collection() -> Generator[None, None, None]:
    """Turn the garbage collector off in the context.

    A comparison makes many small objects that last; searching them for cycles takes a fifth of its time.
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
    run, ref = (side if isinstance(side, Run) else Run(side) for side in (run, ref))
    arrangements = arrange(run, ref, steps=steps, ranks=ranks, names=names)
    recorded = arrangements if steps is None else arrange(run, ref, ranks=ranks, names=names)
    detailed = steps_in_detail(run, ref, recorded) if steps is None else with_steps_before(arrangements, recorded)
    require_same_layout(run, ref, recorded)
    measure = measure_with(max_bytes, fingerprints=_kind_of_prints(run) == _kind_of_prints(ref))
    judged: list[Step] = []
    for num_done, arrangement in enumerate(detailed):
        if progress is not None:
            progress(num_done, len(detailed))
        moved = update_distance(run, ref, arrangement.step - recorded[0].step)
        step = _judge_step((run, ref), arrangement, judged, measure=measure, tolerance=tolerance, moved=moved)
        judged.append(step)
    conclusion = conclude(run, ref, judged, late_fault(judged))
    scale = judged[0].alignment.loss_scale
    loss_findings, loss_notes = (
        _judge_losses(run, ref, tolerance, conclusion.findings, scale) if steps is None else ([], [])
    )
    # Steps before the chosen ones were judged for what they left behind, and are not shown.
    shown = [step for step in conclusion.steps if steps is None or step.step in steps]
    rows_by_step = [[_make_row(step, compared) for compared in step.rows] for step in shown]
    rows = list(chain.from_iterable(rows_by_step))
    share = judged_share(conclusion.steps)
    # "Rounding explains it" is no answer where too little was judged.
    findings = [
        finding for finding in conclusion.findings if not (share.lacking and finding.code == "explained-by-rounding")
    ]
    findings += [*written_over(shown, max_bytes=max_bytes), *not_repeating(rows, run, ref), *loss_findings]
    summaries = _mark_finished(_summaries(arrangements, zip(shown, rows_by_step, strict=True)), run, ref)
    first = conclusion.first
    return Comparison(
        run=run.path,
        ref=ref.path,
        findings=tuple(replace(finding, where=where_of(finding, run, {})) for finding in in_causal_order(findings)),
        rows=rows,
        steps=_with_losses(summaries, run, ref, scale),
        first=None if first is None else _with_details(_make_row(*first), first.row, max_bytes),
        missing=_num_missing(rows),
        notes=(
            *loss_notes,
            *_remarks(shown),
            *_notes(run, ref, arrangements, len(shown)),
            *_earlier_difference_notes(conclusion, shown),
        ),
        judged=share,
        one_sided=one_sided_calls(shown, rows),
    )


def _judge_step(
    runs: tuple[Run, Run],
    arrangement: Arrangement,
    earlier: Sequence[Step],
    *,
    measure: Measure,
    tolerance: Tolerance | None,
    moved: float | None,
) -> Step:
    """Judge a step of ``runs`` after ``earlier`` ones; see ``Divergence``."""
    tainted = any(_moves_apart(step) for step in earlier if step.step < arrangement.step)
    previous = next(
        (step for step in earlier if (step.step, step.rank) == (arrangement.step - 1, arrangement.rank)), None
    )
    previous = previous if previous is not None and previous.equal_before_update else None
    alignment = with_one_loss_scale(arrangement.read(), clipped_ratio(*runs, arrangement.step, arrangement.rank))
    judge = functools.partial(
        Divergence,
        alignment,
        measure=measure,
        tolerance=tolerance,
        moved=moved,
        tainted=tainted,
        same_update=previous is not None,
    )
    divergence = judge()
    if divergence.has_multiples:
        divergence = judge(multiples=True)
    judged_rows = without_harmless(divergence.rows)
    step = Step(runs[0], arrangement.step, arrangement.rank, alignment, judged_rows, previous, runs[1])
    rows = with_consequences(step.rows, step.rewired_rows)
    # Where rows changed it takes a new Step, whose cached properties have not seen the old ones.
    return step if rows is step.rows else replace(step, rows=rows)


def _moves_apart(step: Step) -> bool:
    """Tell whether the gradients of a step's update differ by more than rounding explains, or random numbers do."""
    return step.first is not None or bool(step.rewired_rows) or any(row.note == DRAWN for row in step.rows)


def _judge_losses(
    run: Run, ref: Run, tolerance: Tolerance | None, findings: Sequence[Finding], scale: float
) -> tuple[list[Finding], list[str]]:
    """Findings and notes on the losses of all steps, recorded value by value or not.

    Losses of the run have the ``scale``, over that of the reference, that the update undoes.
    """
    has_errors = any(finding.severity == "error" for finding in findings)
    curve = {step: loss / scale for step, loss in loss_curve(run).items()}
    return judge_losses(curve, loss_curve(ref), tolerance, has_errors=has_errors)


def _with_losses(summaries: Sequence[StepSummary], run: Run, ref: Run, scale: float) -> list[StepSummary]:
    """Add to ``summaries`` the difference of the losses, where both runs recorded these."""
    steps = {summary.step for summary in summaries}
    losses, ref_losses = losses_by_rank(run, steps), losses_by_rank(ref, steps)
    completed: list[StepSummary] = []
    for summary in summaries:
        loss, ref_loss = losses.get((summary.step, summary.rank)), ref_losses.get((summary.step, summary.rank))
        if loss is not None and ref_loss is not None and ref_loss != 0:
            completed.append(replace(summary, loss_rel=abs(loss / scale - ref_loss) / abs(ref_loss)))
        else:
            completed.append(summary)
    return completed


def steps_in_detail(run: Run, ref: Run, arrangements: Sequence[Arrangement]) -> list[Arrangement]:
    """Arrangements that are compared value by value: the first ``STEPS_IN_DETAIL`` that differ.

    As many of the rest at equal distances follow, to show how differences grow. Few arrangements are returned whole.
    """
    if len(arrangements) <= STEPS_IN_DETAIL:
        return list(arrangements)
    if arrangements[0].rank is None:
        differing = list(arrangements)
    else:
        differing_keys = set(differing_steps(run, ref, steps={arrangement.step for arrangement in arrangements}))
        differing = [
            arrangement for arrangement in arrangements if (arrangement.step, arrangement.rank) in differing_keys
        ] or [arrangements[0]]
    rest = differing[STEPS_IN_DETAIL:]
    gap = max(-(-len(rest) // STEPS_IN_DETAIL), 1)
    return [*differing[:STEPS_IN_DETAIL], *rest[gap - 1 :: gap]]


def with_steps_before(chosen: Sequence[Arrangement], recorded: Sequence[Arrangement]) -> list[Arrangement]:
    """Arrangements of the ``chosen`` steps, of the steps just before them, and of the first of ``recorded``.

    The state that these leave decides which differences a chosen step may have.
    """
    steps = {arrangement.step for arrangement in chosen}
    needed = {*steps, *(step - 1 for step in steps)}
    if max(steps) > recorded[0].step:
        needed.add(recorded[0].step)
    return [arrangement for arrangement in recorded if arrangement.step in needed]


def _earlier_difference_notes(conclusion: Conclusion, shown: Sequence[Step]) -> list[str]:
    """Note on a difference that begins at a step before the chosen ones."""
    first_shown = min((step.step for step in shown), default=0)
    if conclusion.first is None or conclusion.first.step.step >= first_shown:
        return []
    return [f"The difference begins at step {conclusion.first.step.step}, before the steps that were chosen."]


def update_distance(run: Run, ref: Run, num_steps: int) -> float | None:
    """Distance that ``num_steps`` updates may put between two elements of a parameter: two learning rates each.

    Updates of the size of the learning rate do so when they go opposite ways, as Adam's may. 0 where neither Run knows
    its learning rate; None before any update.
    """
    if num_steps == 0:
        return None
    groups = [group for side in (run, ref) for env in side.env.values() for group in env.optimizer.get("groups", [])]
    rates = [float(group["lr"]) for group in groups if isinstance(group.get("lr"), int | float)]
    return 2 * num_steps * max(rates, default=0.0)


def _with_details(row: ComparedRow, compared: Compared, max_bytes: int) -> ComparedRow:
    """Add to ``row`` the details of the difference, element by element, where both sides stored the value."""
    value, ref_value = compared.run_value, compared.ref_value
    if value is None or ref_value is None or value.load is None or ref_value.load is None:
        return row
    dtype = coarser(value.dtype, ref_value.dtype)
    tensor = value.load()
    _, ref_tensor = nearest(tensor, ref_value.load(), max_bytes=max_bytes)
    details = {} if ref_tensor is None else describe_difference(tensor, ref_tensor, dtype=dtype, max_bytes=max_bytes)
    return replace(row, details={**(row.details or {}), **details})


def _summaries(
    arrangements: Sequence[Arrangement], judged: Iterable[tuple[Step, Sequence[ComparedRow]]]
) -> list[StepSummary]:
    by_key = {(step.step, step.rank): _summary_of(step, rows) for step, rows in judged}
    return [
        by_key.get((arrangement.step, arrangement.rank))
        or StepSummary(arrangement.step, arrangement.rank, {}, detailed=False)
        for arrangement in arrangements
    ]


def _mark_finished(summaries: Sequence[StepSummary], *runs: Run) -> list[StepSummary]:
    """Mark summaries of steps that no run has a row of: no update ended them."""
    if not any(len(run.steps) for run in runs):
        return list(summaries)
    ended = {int(step) for run in runs for step in run.steps}
    return [replace(summary, finished=summary.step in ended) for summary in summaries]


def _num_missing(rows: Sequence[ComparedRow]) -> dict[str, int]:
    """Number of values without a twin, by reason."""
    return dict(Counter([row.note for row in rows if row.site is None or row.ref_site is None]).most_common())


def _remarks(steps: Sequence[Step]) -> list[str]:
    """Notes on the scaling of the loss, and on values that differ and were not compared."""
    scales = list(dict.fromkeys(step.alignment.loss_scale for step in steps if step.alignment.loss_scale != 1.0))
    if not scales:
        return incomparable(steps)
    shown = ", then ".join(f"{scale:.6g}" for scale in scales[:3])
    return [
        f"The loss is scaled for the backward pass, and the update undoes it: gradients before the update are {shown} "
        "times those of the reference, and were divided by that before they were compared.",
        *incomparable(steps),
    ]


def require_same_layout(run: Run, ref: Run, arrangements: Sequence[Arrangement]) -> None:
    """Raise ``CannotTell`` where ranks would have to be merged and only bits are known, which merge with no others."""
    if any(arrangement.rank is None for arrangement in arrangements) and BITS in (
        run.manifest.fingerprint,
        ref.manifest.fingerprint,
    ):
        raise CannotTell(
            "Bits alone were recorded (preset 'bits'), and the Runs have other ranks, whose sums do not have the same "
            "bits. Compare Runs of the same ranks, or record both with `--plan mix`."
        )


def _kind_of_prints(run: Run) -> str:
    """How the fingerprints of a Run were made; bits alone are taken in another way on a CPU than on other devices."""
    kind = run.manifest.fingerprint
    on_host = {env.device == "cpu" for env in run.env.values()}
    return f"{kind} of {'a CPU' if True in on_host else 'a device'}" if kind == BITS and on_host else kind


def _notes(run: Run, ref: Run, arrangements: Sequence[Arrangement], num_detailed: int) -> list[str]:
    notes = list(dict.fromkeys(arrangement.note for arrangement in arrangements if arrangement.note))
    kinds = _kind_of_prints(run), _kind_of_prints(ref)
    if kinds[0] != kinds[1]:
        notes.append(
            f"The Runs have fingerprints of different kinds ({kinds[0]} and {kinds[1]}), which cannot be compared: "
            "values are compared by what else was recorded."
        )
    num_left = len(arrangements) - num_detailed
    if num_left:
        notes.append(
            f"{num_left} of {len(arrangements)} recorded steps were not compared value by value: they are equal, or "
            f"come after the first {STEPS_IN_DETAIL} that differ. Choose such a step with --step to have it compared "
            "so."
        )
    return [*notes, *(f"{side.path}: {problem}" for side in (run, ref) for problem in side.problems)]


def _make_row(step: Step, compared: Compared) -> ComparedRow:
    """Row of a value of ``step`` and its twin, as texts and numbers."""
    run_value, ref_value, distance, expectation = (
        compared.run_value,
        compared.ref_value,
        compared.distance,
        compared.expectation,
    )
    value = compared.value
    nonfinite = distance is not None and distance.nonfinite_differ
    measured = None if distance is None or nonfinite else distance.rel
    return ComparedRow(
        step.step,
        step.rank,
        compared.position,
        None if run_value is None else str(run_value.site),
        None if ref_value is None else str(ref_value.site),
        compared.judgement,
        value.kind,
        value.api,
        "" if run_value is None else run_value.dtype,
        "" if ref_value is None else ref_value.dtype,
        value.shape,
        measured=measured,
        expected=None if expectation is None or measured is None else expectation.rel,
        times=compared.times,
        how="" if distance is None or measured is None else distance.how,
        note=compared.note or (NONFINITE if nonfinite else ""),
        where=step.frame(value, of_reference=run_value is None),
        details=None if distance is None else distance.details,
    )


def _summary_of(step: Step, rows: Sequence[ComparedRow]) -> StepSummary:
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
    """Relative difference of the loss: the last single number that the forward pass returned."""
    for row in reversed(rows):
        value = row.run_value
        if value is None or row.distance is None or value.shape != () or value.site.phase != "fwd":
            continue
        if value.returned and value.dtype.startswith(("float", "bfloat")):
            return row.distance.rel
    return None
