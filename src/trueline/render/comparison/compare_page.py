"""write_page: a comparison as one self-contained HTML file, in the style of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from trueline.analyze.compare.result import JUDGEMENTS, ComparedRow, Comparison, StepSummary
from trueline.render.charts.chart import Chart
from trueline.render.comparison.compare_chart import PHASES, growth_chart, phase_charts, phase_of
from trueline.render.comparison.compare_details import place_of
from trueline.render.comparison.compare_growth import differs, percent
from trueline.render.comparison.compare_rows import JUDGEMENT_WORDS, most_relevant, place_text, same_row, shape_text
from trueline.render.comparison.compare_story import Story
from trueline.render.html_document import policy, resource, template, version
from trueline.render.output import save
from trueline.render.report.finding_row import FindingRow, finding_row
from trueline.render.report.page import FindingGroup
from trueline.render.wording import ABSENT, number
from trueline.schema.text.words import clipped

_TEMPLATE = "compare.html.j2"
_MAX_RELEVANT = 300
_AROUND = 12
_MAX_STEPS = 200
"""Rows of the tables: the most relevant ones, those on each side of the first difference, steps. CSV has all rows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a comparison as texts, and the class of its judgement; ``also`` counts sites with the same value."""

    judgement: str
    said: str
    times: str
    measured: str
    expected: str
    how: str
    site: str
    ref_site: str
    what: str
    note: str
    also: int = 0
    first: bool = False


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step and rank as texts: counts by judgement, the first value that differs, the largest difference, loss."""

    step: str
    rank: str
    counts: tuple[str, ...]
    first: str
    times: str
    loss: str


@dataclass(frozen=True, slots=True)
class ComparePage:
    """Everything on the page, worded. ``phases`` are (phase, a count for each judgement)."""

    title: str
    run: str
    ref: str
    written_at: str
    story: Story
    findings: tuple[FindingGroup, ...]
    notices: tuple[FindingGroup, ...]
    at: str
    charts: tuple[Chart, ...]
    around: tuple[Line, ...]
    lines: tuple[Line, ...]
    lines_caption: str
    said: tuple[str, ...]
    phases: tuple[tuple[str, tuple[str, ...]], ...]
    steps: tuple[StepLine, ...]
    num_steps: int
    growth: tuple[Chart, ...]


def write_page(target: Path, comparison: Comparison, story: Story) -> None:
    """Write the page on ``comparison`` to ``target``, whole or not at all. It loads nothing. Raises ``InputError``."""
    save(target, render(comparison, story), what="page")


def render(comparison: Comparison, story: Story) -> str:
    """The HTML document about ``comparison``."""
    page = _page_of(comparison, story)
    css = f"{resource('report.css')}\n{resource('compare.css')}"
    js = resource("compare.js")
    points = {chart.id: chart.numbers["points"] for chart in (*page.charts, *page.growth) if "points" in chart.numbers}
    numbers = json.dumps(points, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return template(_TEMPLATE).render(
        page=page, css=Markup(css), js=Markup(js), numbers=Markup(numbers), policy=policy(css, js), version=version()
    )


def _page_of(comparison: Comparison, story: Story) -> ComparePage:
    shown = _shown(comparison)
    relevant = most_relevant(comparison.rows, comparison.first, len(comparison.rows))
    grave, notices = _finding_groups(comparison)
    return ComparePage(
        title=f"Trueline: {clipped(f'{comparison.run} compared with {comparison.ref}', 80)}",
        run=comparison.run,
        ref=comparison.ref,
        written_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        story=story,
        findings=grave,
        notices=notices,
        at=_at(shown),
        charts=tuple(phase_charts(shown, comparison.first)) if shown else (),
        around=tuple(_around(shown, comparison.first)),
        lines=tuple(_line(each.row, also=each.also) for each in relevant[:_MAX_RELEVANT]),
        lines_caption=_lines_caption(min(len(relevant), _MAX_RELEVANT), len(relevant)),
        said=tuple(JUDGEMENT_WORDS[name] for name in JUDGEMENTS),
        phases=tuple(_phases(comparison.rows)),
        steps=tuple(_step_line(each) for each in _steps_shown(comparison.steps)),
        num_steps=len(comparison.steps),
        growth=tuple(_growth(comparison.steps)),
    )


def _shown(comparison: Comparison) -> list[ComparedRow]:
    """The rows of the step and rank of the first difference, else of the first that has any."""
    rows = comparison.rows
    differing = (row for row in rows if row.judgement not in ("equal", "not-comparable"))
    chosen = comparison.first or next(differing, rows[0] if rows else None)
    if chosen is None:
        return []
    return [row for row in rows if (row.step, row.rank) == (chosen.step, chosen.rank)]


def _at(rows: Sequence[ComparedRow]) -> str:
    if not rows:
        return ""
    return f"step {rows[0].step}" + (", ranks merged" if rows[0].rank is None else f", rank {rows[0].rank}")


def _lines_caption(shown: int, count: int) -> str:
    which = "Each value that is" if shown == count else f"The {shown:,} most relevant of {count:,} values that are"
    order = "beyond rounding first, then propagated, the largest of the first step first"
    return f"{which} not equal: {order}. --csv and --xlsx have every row."


def _finding_groups(comparison: Comparison) -> tuple[tuple[FindingGroup, ...], tuple[FindingGroup, ...]]:
    """Errors and warnings, and what is worth knowing, numbered through."""
    findings = sorted(comparison.findings, key=lambda finding: finding.severity == "info")
    ranks = sorted({each.rank for each in comparison.steps if each.rank is not None})
    rows: list[tuple[str, FindingRow]] = [
        (finding.severity, finding_row(place, finding, ranks)) for place, finding in enumerate(findings, start=1)
    ]
    grave = tuple(row for severity, row in rows if severity != "info")
    notices = tuple(row for severity, row in rows if severity == "info")
    return (FindingGroup("", grave),) if grave else (), (FindingGroup("", notices),) if notices else ()


def _around(rows: Sequence[ComparedRow], first: ComparedRow | None) -> list[Line]:
    """The rows before and after the first difference in the order of execution, equal ones too."""
    place = next((place for place, row in enumerate(rows) if first is not None and same_row(row, first)), None)
    if place is None or first is None:
        return []
    near = rows[max(place - _AROUND, 0) : place + _AROUND + 1]
    return [_line(row, first=same_row(row, first)) for row in near]


def _line(row: ComparedRow, *, also: int = 0, first: bool = False) -> Line:
    dtype = row.dtype if row.dtype == row.ref_dtype else f"{row.dtype} (REF {row.ref_dtype})"
    return Line(
        judgement=row.judgement,
        said=JUDGEMENT_WORDS[row.judgement],
        times=number(row.times, 3),
        measured=number(row.measured, 3),
        expected=number(row.expected, 3),
        how=row.how,
        site=place_text(row),
        ref_site=row.ref_site if row.site and row.ref_site and row.ref_site != row.site else "",
        what=f"{row.api or row.kind}, {dtype} {shape_text(row.shape)}",
        note="; ".join(text for text in (place_of(row.details), row.note, row.where) if text),
        also=also,
        first=first,
    )


def _phases(rows: Sequence[ComparedRow]) -> list[tuple[str, tuple[str, ...]]]:
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        of = counts.setdefault(phase_of(row.site or row.ref_site or ""), dict.fromkeys(JUDGEMENTS, 0))
        of[row.judgement] += 1
    order = [*(phase for phase in PHASES if phase in counts), *sorted(set(counts) - set(PHASES))]
    return [
        (
            PHASES.get(phase, phase),
            tuple(f"{counts[phase][name]:,}" if counts[phase][name] else ABSENT for name in JUDGEMENTS),
        )
        for phase in order
    ]


def _steps_shown(steps: Sequence[StepSummary]) -> Sequence[StepSummary]:
    """At most ``_MAX_STEPS`` steps in their order; those that differ take precedence."""
    if len(steps) <= _MAX_STEPS:
        return steps
    differing = [place for place, each in enumerate(steps) if differs(each)]
    others = [place for place, each in enumerate(steps) if not differs(each)]
    return [steps[place] for place in sorted([*differing, *others][:_MAX_STEPS])]


def _step_line(each: StepSummary) -> StepLine:
    return StepLine(
        step=str(each.step),
        rank=ABSENT if each.rank is None else str(each.rank),
        counts=tuple(f"{each.counts.get(name, 0):,}" if each.counts.get(name, 0) else ABSENT for name in JUDGEMENTS),
        first=each.first_site or "",
        times=number(each.largest_times, 3),
        loss=ABSENT if each.loss_rel is None else percent(abs(each.loss_rel)),
    )


def _growth(steps: Sequence[StepSummary]) -> list[Chart]:
    times: dict[int, float] = {}
    losses: dict[int, float] = {}
    for each in steps:
        if each.largest_times is not None:
            times[each.step] = max(times.get(each.step, 0.0), each.largest_times)
        if each.loss_rel is not None:
            losses[each.step] = max(losses.get(each.step, 0.0), abs(each.loss_rel))
    charts: list[Chart] = []
    if len(times) > 1:
        charts.append(growth_chart("growth-times", "Largest difference, times rounding", times, ""))
    if len(losses) > 1:
        charts.append(growth_chart("growth-loss", "Difference of the loss, relative", losses, ""))
    return charts
