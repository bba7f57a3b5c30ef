"""Where on the step axis the findings of a Run begin: one labelled line for each place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trueline.render.charts.path import Plot
from trueline.schema.finding import SEVERITIES, Finding
from trueline.schema.text.words import ranges

_APART_PERCENT = 6.0
"""Marks nearer to each other than this share one label, or their numbers would overlap."""
_MAX_RANGES = 3


@dataclass(frozen=True, slots=True)
class Mark:
    """A line at ``at`` (percent of the plot's width), labelled with the numbers of the findings that begin there, of
    which ``first`` is the first (0: it is no finding's).
    """

    at: float
    text: str
    severity: str
    anchor: str
    first: int = 0


def marks(findings: Sequence[tuple[int, Finding]], plot: Plot) -> list[Mark]:
    """Marks for numbered findings, left to right; those that name no step, or one outside the plot, have none."""
    placed = sorted(
        (100.0 * (finding.step_first - plot.first_step) / max(plot.last_step - plot.first_step, 1), number, finding)
        for number, finding in findings
        if finding.step_first is not None and plot.first_step <= finding.step_first <= plot.last_step
    )
    groups: list[list[tuple[float, int, Finding]]] = []
    for item in placed:
        if groups and item[0] - groups[-1][0][0] < _APART_PERCENT:
            groups[-1].append(item)
        else:
            groups.append([item])
    return [_mark(group) for group in groups]


def _mark(group: list[tuple[float, int, Finding]]) -> Mark:
    texts = ranges((number for _, number, _ in group), dash="–")
    shown = texts if len(texts) <= _MAX_RANGES else [*texts[: _MAX_RANGES - 1], "…"]
    severity = min((finding.severity for _, _, finding in group), key=SEVERITIES.index)
    at = round(group[0][0], 2)
    return Mark(
        at,
        ", ".join(shown),
        severity,
        "start" if at < 8 else "end" if at > 92 else "middle",
        first=min(number for _, number, _ in group),
    )
