"""The parts that findings on differences share: ranks, steps, sites and sizes of the values they are on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trueline.comparison.judgement.step import StepRow
from trueline.comparison.judgement.structure import innermost
from trueline.comparison.judgement.values.compared import NONFINITE, Compared
from trueline.judge.recorded.step_values import Call
from trueline.schema.finding import Finding

FIRST_DIVERGENCE = "first-divergence"

COMPARE_LINES = "Compare the code of both runs at these lines."

SEED_ALIKE = "Seed both runs equally, with trueline.seed_all(1234), and draw as often before this call in both."

_SIGN_TOLERANCE = 0.05
"""Distance from -1 up to which a factor is called a change of sign."""


def finding_on(
    code: str,
    severity: Any,
    claim: str,
    step_rows: Sequence[StepRow],
    *,
    ranks: tuple[int, ...] | None = None,
    evidence: Mapping[str, Any] | None = None,
    advice: tuple[str, ...] = (),
) -> Finding:
    """The finding on ``step_rows``, measured at the first of them; ``ranks`` default to those of the rows."""
    rows = [row for _, row in step_rows]
    first = rows[0] if rows else None
    steps = [step.step for step, _ in step_rows]
    distance, expectation = (None, None) if first is None else (first.distance, first.expectation)
    return Finding(
        code=code,
        severity=severity,
        claim=claim,
        ranks=tuple(sorted({rank for row in rows for rank in row.value.ranks})) if ranks is None else ranks,
        step_first=min(steps, default=None),
        step_last=max(steps, default=None),
        sites=tuple(str(row.value.site) for row in rows[:5]),
        measured=None if distance is None else distance.rel,
        expected=None if expectation is None else expectation.rel,
        unit="relative L2 difference" if distance is not None else "",
        evidence=dict(evidence or {}),
        next=advice,
    )


def difference_text(row: Compared) -> str:
    """``by 0.02 of its norm, 31 times what rounding explains``; '' where the difference was not measured."""
    if row.distance is None:
        return ""
    if row.distance.nonfinite_differ:
        return NONFINITE
    if row.distance.rel is None:
        return "by an amount that checksums do not show" if is_by_checksum(row) else "it cannot be compared"
    if row.distance.reordered:
        return "in the order of its numbers, which are the same as far as statistics show"
    if row.distance.factor is not None:
        return f"by {_multiple_text(row.distance.factor)}"
    times = row.times
    times_text = "" if times is None or math.isinf(times) else f", {times:.3g} times what rounding explains"
    return f"by {row.distance.size_text}{times_text}"


def _multiple_text(factor: float) -> str:
    if not factor:
        return "being 0 throughout, in this run only"
    name = "its sign" if abs(factor + 1) < _SIGN_TOLERANCE else f"a factor of about {factor:.3g}"
    return f"{name}, and rounding makes no multiples"


def is_by_checksum(row: Compared) -> bool:
    """True where only the existence of a difference is known, not its size."""
    return row.distance is not None and row.distance.how == "fingerprint" and row.distance.rel is None


def call_sites(calls: Sequence[Call]) -> list[str]:
    """Sites of the innermost of ``calls``, the first 100."""
    return [str(call.first.site) for call in innermost(calls)][:100]
