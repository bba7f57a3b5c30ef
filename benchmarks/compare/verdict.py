"""What `compare` says of a pair of runs, in short."""

from __future__ import annotations

from trueline.comparison.result import Comparison


def named(comparison: Comparison, step: int, *places: str) -> bool:
    """Whether the first difference is at one of ``places`` or inside, in the forward pass of ``step``."""
    first = comparison.first
    site = "" if first is None else str(first.site or first.ref_site)
    return first is not None and first.step == step and any(f"/fwd/{place}" in site for place in places)


def said(comparison: Comparison) -> str:
    """The first error."""
    told = [finding.claim for finding in comparison.findings if finding.severity == "error"]
    return told[0] if told else f"nothing ({comparison.counts})"


def largest(comparison: Comparison, first: int = 0, last: int | None = None) -> float:
    """The largest difference that rounding explains, in times of the expected, of the steps up to before ``last``."""
    within = (row for row in comparison.rows if row.judgement == "within" and row.step is not None)
    steps = range(first, 2**62 if last is None else last)
    return max((row.times or 0.0 for row in within if row.step in steps), default=0.0)
