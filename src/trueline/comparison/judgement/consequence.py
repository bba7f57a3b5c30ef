"""Differences that have no consequence: two ways to compute the same, such as another number in a mask that softmax
maps to zero, the addends of a sum in another order, or a sum divided by a count for a mean.

Between the two ways values are altogether different; what they are for does not differ by more than rounding explains.
The results of the model and the gradients of all parameters must have been judged, and agree: a fault that changes
neither what the model returns nor what is learned from it is none of this step. They are to agree to a thousandth,
whatever rounding might explain: in bfloat16 that includes what a wrong branch adds. Where more is expected, what was
measured must be as small as the rounding of float32, and be so before clipping, which hides a factor, too. Gradients
may be in another order, and nothing else. A small difference is never excused, as those that follow from it may be too
small to tell, and neither are calls that write to memory, nor values that no call computed: what is left in a buffer
counts at the steps that use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueline.comparison.judgement.values.compared import COARSE_REL, Compared
from trueline.comparison.judgement.values.value_judgement import NOISE
from trueline.judge.recorded.step_values import Value

_TIGHT_REL = 1e-3
"""The expected difference of a result up to which it agrees for certain, unless it is equal."""

NO_CONSEQUENCE = "computed in another way, and nothing that follows from it differs"


def without_harmless(rows: Sequence[Compared]) -> Sequence[Compared]:
    """``rows``, of which those beyond rounding, and what they explain, are not comparable where they have no
    consequence.
    """
    if not any(row.judgement == "beyond" for row in rows) or not _is_harmless(rows):
        return rows
    return [
        replace(row, judgement="not-comparable", note=NO_CONSEQUENCE, rewired=False)
        if row.judgement in ("beyond", "propagated") or row.rewired
        else row
        for row in rows
    ]


def with_consequences(rows: Sequence[Compared], blamed: Sequence[Compared]) -> Sequence[Compared]:
    """``rows``, of which those that rounding might explain are propagated where they were computed from ``blamed``
    ones, or behind these from values of one run only: the worst case of rounding is no reason where there is a better
    one.
    """
    behind = {row.root for row in blamed}
    # Only what comes later may be a consequence.
    first = min((row.position for row in blamed), default=0)
    return [_as_consequence(row, behind) if row.position > first else row for row in rows] if blamed else rows


def _as_consequence(row: Compared, behind: set[int | None]) -> Compared:
    """``row``, and its root in ``behind`` if it is a consequence of values there."""
    expectation = row.expectation
    if row.unmatched or (expectation is not None and behind.intersection(expectation.sources)):
        behind.add(row.root)
    if row.judgement != "within" or row.root not in behind or row.hardly_differs:
        return row
    return replace(row, judgement="propagated")


def _is_harmless(rows: Sequence[Compared]) -> bool:
    return all(_may_be_excused(row) for row in rows if row.judgement == "beyond") and results_agree(rows)


def results_agree(rows: Sequence[Compared]) -> bool:
    """True where the results of the model and the gradients of all parameters were judged, and agree for certain."""
    pairs = [(row, row.run_value) for row in rows if row.run_value is not None and row.ref_value is not None]
    results = [row for row, value in pairs if _is_result(value)]
    params = [(row, value.site.phase) for row, value in pairs if value.kind == "param"]
    phase = "grad" if any(param_phase == "grad" for _, param_phase in params) else "bwd"
    gradients = [row for row, param_phase in params if param_phase == phase]
    largest = max((row.norm for row in gradients), default=0.0)
    # Of a gradient that is rounding left of 0 no agreement can be asked.
    gradients = [row for row in gradients if row.judgement == "beyond" or row.norm >= NOISE * largest]
    untouched = all(row.judgement in ("equal", "within") for row, param_phase in params if param_phase == "bwd")
    certain = (_certainly_agrees(row) or (untouched and row.hardly_differs) for row in [*results, *gradients])
    return bool(results and gradients) and all(certain)


def _may_be_excused(row: Compared) -> bool:
    value = row.run_value or row.ref_value
    if value is None or row.expectation is None or row.distance is None:
        return False
    if value.site.phase != "fwd" and not (value.site.phase == "bwd" and row.distance.reordered):
        return False
    # An underscore at the end writes in place, a double one is an operator.
    writes = value.api.endswith("_") and not value.api.endswith("__")
    recorded = row.expectation.origin in ("call", "gradient", "wiring") and value.kind == "op" and not writes
    if not recorded and row.expectation.origin != "unrecorded":
        return False
    return row.distance.nonfinite_differ or (row.distance.rel or 0.0) > COARSE_REL


def _is_result(value: Value) -> bool:
    """True where the model itself returned a value."""
    return value.kind == "module" and value.returned and not value.module and value.site.phase == "fwd"


def _certainly_agrees(row: Compared) -> bool:
    if row.judgement != "within":
        return row.judgement == "equal"
    return row.expectation is not None and row.expectation.rel <= _TIGHT_REL
