"""Findings on calls that take other inputs than in the reference, forwards or on the way of the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.comparison.judgement.cut_gradients import calls_behind, own_backward
from trueline.comparison.judgement.findings.finding import COMPARE_LINES, difference_text, finding_on
from trueline.comparison.judgement.functions_of_one_run import functions_of_one_run
from trueline.comparison.judgement.history.loss_gap import FIRST_STEP, loss_ratio
from trueline.comparison.judgement.step import Step, StepRow, step_rows
from trueline.comparison.judgement.structure import calls_alone
from trueline.comparison.judgement.structure_text import difference_in_words, the_runs_part
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.judge.series.clip_calls import calls_at
from trueline.schema.finding import Finding

_GRADIENTS_ALONE = "What the model returns agrees, and gradients before these calls do not, first"


def rewired_rows(steps: Sequence[Step]) -> list[StepRow]:
    """Rows of ``steps`` that their wiring is to blame for."""
    return [StepRow(step, row) for step in steps for row in step.rewired_rows]


def wiring_differs(steps: Sequence[Step], *, before: StepRow | None) -> tuple[Finding, StepRow] | None:
    """The finding on calls that take different inputs than in the reference, and the first such value. ``before`` is
    the first value beyond rounding; where there is none, final results that are equal excuse the wiring.
    """
    rewired = rewired_rows(steps)
    if before is not None:
        # Wiring after the first value beyond rounding may be its consequence.
        position = before.row.position
        rewired = [pair for pair in step_rows(steps) if pair.row.rewired and pair.row.position < position]
    if not rewired:
        return None
    first = min(rewired, key=lambda pair: (pair.row.position, pair.step.rank or 0))
    return gradients_turn(first, forward_agrees=before is None) or _inputs_differ(first), first


def _inputs_differ(first: StepRow) -> Finding:
    phase = first.site.phase
    if phase in ("grad", "opt"):
        return _update_calls_differ(first)
    where = f"{first.site} ({first.call_text})"
    claim = f"{where} takes different inputs than in the reference: the two models connect their calls differently."
    compare = "Compare the forward methods of both models at this call."
    if phase == "bwd":
        claim = (
            f"In the backward pass {where} differs from the reference {difference_text(first.row)}: it is made of "
            "other gradients."
        )
        compare = "Compare what both models do backwards at this line: autograd functions of your own, hooks, detach."
    return finding_on("structure-differs", "error", claim, [first], advice=(compare, first.command))


def _update_calls_differ(first: StepRow) -> Finding:
    """The finding on calls between the backward pass and the end of the update that only one run makes."""
    step, phase, size_text = first.step, first.site.phase, difference_text(first.row)
    lone = calls_alone(step, phase)
    words = difference_in_words(step, lone) if lone.mine or lone.theirs else "the same calls take other values"
    if phase == "opt":
        code, advice = "optimizer-differs", "Build both optimizers from one configuration."
        claim = f"The optimizers compute differently: {words}. First {first.site} differs {size_text}."
    else:
        code, advice = "structure-differs", "Do the same to the gradients in both runs before the update."
        claim = (
            f"All that the backward pass computes agrees, and {_clipping_text(step)}: {words}. First {first.site} "
            f"differs {size_text}."
        )
    return finding_on(code, "error", claim, [first], evidence={"difference": words}, advice=(advice, first.command))


def _clipping_text(step: Step) -> str:
    clips, ref_clips = (bool(calls_at(run, step.step, step.rank)) for run in (step.run, step.ref or step.run))
    if clips != ref_clips:
        return f"only {'RUN' if clips else 'REF'} clips gradients"
    return "what is done to gradients before the update is not the same"


def gradients_turn(first: StepRow, *, forward_agrees: bool) -> Finding | None:
    """The finding on calls that only one run makes, where the ``first`` gradient that differs is of what they took or
    returned. None where there are no such calls.
    """
    step = first.step
    behind = calls_behind(step, first.row) if first.site.phase == "bwd" else None
    if behind is None:
        return None
    difference, call_row = behind[0], StepRow(step, behind[1])
    loss = loss_text(step) if forward_agrees else ""
    # Losses that part although all shared values agree are made by functions that one run alone calls.
    if loss:
        difference, call_row = _functions_behind_loss(difference, call_row)
    words = difference_in_words(step, difference)
    lead = _GRADIENTS_ALONE if forward_agrees and not loss else f"{loss}Gradients before them differ, first"
    backward = own_backward(step, frozenset(call.module for call in (*difference.mine, *difference.theirs)))
    claim = f"{the_runs_part(difference, words)} {lead} {first.site} {difference_text(first.row)}.{backward}"
    advice = (COMPARE_LINES, first.command)
    evidence = {"difference": words, "after": str(first.site)}
    return finding_on("structure-differs", "error", claim, [call_row], evidence=evidence, advice=advice)


def _functions_behind_loss(difference: GraphDifference, call_row: StepRow) -> tuple[GraphDifference, StepRow]:
    """The difference to name where the losses part though no value that both runs have does, and the row to show."""
    step = call_row.step
    functions = functions_of_one_run(step)
    calls = [*functions.mine, *functions.theirs]
    return (functions, StepRow(step, step.row_of(calls[0]))) if calls else (difference, call_row)


def loss_text(step: Step) -> str:
    """``The recorded loss is 2.308 times that of REF. `` where it is another one than rounding makes; else ''."""
    ratio = None if step.ref is None else loss_ratio(step.run, step.ref, step.step, step.rank)
    if ratio is None or abs(ratio / step.alignment.loss_scale - 1) <= FIRST_STEP:
        return ""
    return f"The recorded loss is {ratio:.4g} times that of REF. "
