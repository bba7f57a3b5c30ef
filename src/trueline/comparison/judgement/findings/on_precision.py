"""Findings on dtypes that differ between the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser
from trueline.comparison.judgement.findings.finding import finding_on
from trueline.comparison.judgement.step import Step, StepRow
from trueline.comparison.judgement.values.precision import DtypesPart
from trueline.schema.finding import Finding


def precision_differs(part: DtypesPart, *, consequences: Sequence[Finding]) -> Finding:
    """The finding on the first place of another precision; it is as severe as its ``consequences``."""
    first, row = StepRow(part.step, part.row), part.row
    only_side = "only the reference" if row.run_value is None else "only the run" if row.ref_value is None else ""
    call_text = f"{first.call_text}{', a call of ' + only_side if only_side else ''}"
    claim = (
        f"The run computes in {part.dtype} where the reference computes in {part.ref_dtype}, first at {first.site} "
        f"({call_text}); most of the model has one precision in both."
    )
    # Another precision alone may be meant; with an error after it, it is its likely cause.
    severity = "error" if any(finding.severity == "error" for finding in consequences) else "warning"
    look = "Look for what casts here: autocast, a buffer or cache of another dtype, or a call of .to()."
    evidence = {"dtypes": [part.dtype, part.ref_dtype], "where": first.frame}
    return finding_on("dtype-differs", severity, claim, [first], evidence=evidence, advice=(look, first.command))


def update_precision_differs(part: DtypesPart) -> Finding:
    """The finding on an update in another precision than in the reference, where the forward pass is in one."""
    first = StepRow(part.step, part.row)
    coarse = coarser(part.dtype, part.ref_dtype)
    side = "RUN" if coarse == part.dtype else "REF"
    claim = (
        f"Weights or states of the optimizer are {part.dtype} in RUN and {part.ref_dtype} in REF, and both compute the "
        f"forward pass in one precision: {side} loses what an update changes of a {coarse} number by less than "
        f"{UNIT_ROUNDOFF[coarse]:.1g} of it. First at {first.site} ({first.value.api or first.value.kind})."
    )
    keep = "Keep weights and states of the optimizer in one precision: float32, with autocast or master weights."
    evidence = {"dtypes": [part.dtype, part.ref_dtype]}
    return finding_on("dtype-differs", "error", claim, [first], evidence=evidence, advice=(keep, first.command))


def dtypes_differ(steps: Sequence[Step]) -> list[Finding]:
    """The finding on values that are compared across dtypes; [] where there are none."""
    dtypes = [
        (row, (row.run_value.dtype, row.ref_value.dtype))
        for step in steps
        for row in step.rows
        if row.run_value is not None and row.ref_value is not None and row.run_value.dtype != row.ref_value.dtype
    ]
    if not dtypes:
        return []
    counts = Counter(pair for _, pair in dtypes)
    counts_text = "; ".join(f"{num:,} {dtype} compared with {ref}" for (dtype, ref), num in counts.most_common(3))
    claim = (
        f"Values have different dtypes than in the reference and are judged by the rounding of the coarser one: "
        f"{counts_text}, first {dtypes[0][0].value.site}."
    )
    return [finding_on("dtype-differs", "info", claim, [])]
