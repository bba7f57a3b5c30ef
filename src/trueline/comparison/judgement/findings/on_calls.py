"""Findings on the first call, or unrecorded code, whose result its inputs do not explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueline.comparison.judgement.cause import Cause, cause_of, differing_arguments, in_words
from trueline.comparison.judgement.findings.finding import (
    FIRST_DIVERGENCE,
    SEED_ALIKE,
    difference_text,
    finding_on,
    is_by_checksum,
)
from trueline.comparison.judgement.findings.on_wiring import gradients_turn
from trueline.comparison.judgement.step import StepRow
from trueline.comparison.judgement.unrecorded_code import call_around, module_of, taken_by, user_of
from trueline.comparison.judgement.values.argument_differences import shown_arguments
from trueline.schema.finding import Finding

_ADVICE = {
    "random": SEED_ALIKE,
    "parameters": "Load the same checkpoint into both runs, then compare again.",
    "arguments": "Make the arguments the same, then compare again.",
    "user": "Make the arguments the same, then compare again.",
    "received": "Look for register_hook, or an autograd function of your own, on this tensor in either run.",
}


def first_divergence(differing: Sequence[StepRow]) -> Finding:
    """The finding on the first of ``differing`` values, whose call is to blame."""
    first = differing[0]
    user = user_of(*first)
    if user is not None and first.site.phase == "bwd":
        return _made_by_code(first, user)
    # The line stays that of the call first blamed, also where the gradient is shown as another call has it.
    cause, frame = cause_of(*first), first.frame
    why = in_words(cause)
    if cause.reason == "received":
        turned = gradients_turn(first, forward_agrees=True)
        if turned is not None:
            return turned
        taken_row = taken_by(*first)
        if taken_row is not None:
            first = StepRow(first.step, taken_row)
            cause = cause_of(*first)
            why = f"{in_words(cause)[:-1]}, or a hook on this tensor changes it."
    by_checksum = is_by_checksum(first.row)
    subject = "value whose checksum differs" if by_checksum else "difference that rounding does not explain"
    call_text = f"{first.value.api or first.value.kind}{', ' + frame if frame else ''}"
    claim = f"The first {subject} is at {first.site} ({call_text}): {difference_text(first.row)}; {why}"
    # Ranks that differ at the same call share its fault; others may only receive it.
    same_name = [first, *(pair for pair in differing[1:] if pair.site.name == first.site.name)]
    ranks = {step.rank for step, _ in same_name if step.rank is not None}
    return finding_on(
        FIRST_DIVERGENCE,
        "error",
        claim,
        [first],
        ranks=tuple(sorted(ranks)) or first.value.ranks,
        evidence={
            "kind": cause.reason,
            "why": why,
            "where": frame,
            "beyond": len(differing),
            "arguments": shown_arguments(differing_arguments(*first)),
        },
        advice=_advice(first, cause),
    )


def _advice(first: StepRow, cause: Cause) -> tuple[str, ...]:
    command = first.command
    if cause.reason == "random" and differing_arguments(*first):
        return (_ADVICE["arguments"], command)
    if cause.reason == "random" and cause.different:
        return ("Draw as often in both runs, or give what draws in one alone a torch.Generator of its own.", command)
    if cause.reason in _ADVICE:
        return (_ADVICE[cause.reason], command)
    if all(side is not None and side.load is not None for side in (first.row.run_value, first.row.ref_value)):
        return (command, *first.proof)
    record = 'Record the values of this call in both runs: put its name under names in the Plan, and depth = "tensor".'
    # Statistics leave open whether inputs agree, so that more than the computation may differ.
    is_open = cause.by_statistics or cause.unknown
    return (command, f"{record} They show whether its inputs or its computation differ." if is_open else record)


def unrecorded_differs(differing: Sequence[StepRow]) -> Finding:
    """The finding on a value that code between calls of modules computed, which was not recorded: it names the module
    that the code belongs to, the innermost one that can be told.
    """
    return _made_by_code(differing[0], module_of(*differing[0]) or "")


def _made_by_code(first: StepRow, module: str) -> Finding:
    """The finding on the unrecorded code of ``module``; '' for code outside of the model."""
    code = f"code of {module}" if module else "code outside of the model"
    inputs = "the gradients that it was given agree" if first.site.phase == "bwd" else "what it was given agrees"
    claim = (
        f"The first difference that rounding does not explain is made by {code}, which was not recorded, at "
        f"{first.site}: {difference_text(first.row)}; {inputs} as far as it was recorded."
    )
    finding = with_call_around(finding_on(FIRST_DIVERGENCE, "error", claim, [first]), first, module)
    names = f', names = ["{module}*"]' if module else ""
    record = f'Record all calls in both runs, with preset = "mix"{names} in the Plan: they show which one differs.'
    return replace(finding, next=(record, first.command))


def with_call_around(finding: Finding, first: StepRow, module: str) -> Finding:
    """``finding``, its first site that of the call whose code was not recorded, and which computed ``first``."""
    row = call_around(first.step, first.row, module)
    if row is None:
        return finding
    caller = StepRow(first.step, row)
    return replace(
        finding,
        sites=(str(caller.site), *finding.sites),
        evidence={**finding.evidence, **({"where": caller.frame} if caller.frame else {})},
    )
