"""Everything on the page, worded and placed: what the template fills in without thinking."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from trueline.render.charts.mark import marks
from trueline.render.charts.matrix import LEVELS, MatrixTable, largest_error, matrix_numbers, matrix_table
from trueline.render.charts.panel import ChartSection, dispersion_section, plot_of, workers_section
from trueline.render.report.environment_table import Environment, environment
from trueline.render.report.finding_row import FindingRow, finding_row
from trueline.render.report.glance import GLANCE, glance
from trueline.render.report.page_summary import Summary, headline, judges_workers
from trueline.render.report.run_reading import RunReading
from trueline.render.wording import number, steps_words
from trueline.schema.text.words import clipped, counted, listed, whose_text

if TYPE_CHECKING:
    from trueline.analyze.incidents import Incident
    from trueline.analyze.workers.dispersion import CosineMatrix

_Line = TypeVar("_Line", bound=Hashable)
_Word = tuple[str, str, int]
_Numbered = dict[int, int]
"""Place of a finding in the report of its Run to its number on the page."""
_ORDER = ("found", "warned", "clean", "skipped")
"""Classes of the words about checks, what to read first at the top."""
_NOT_JUDGED = (
    "No check that judges whether one rank’s loss, gradient norm or direction is unusual could run: "
    "these are drawn above for you to look at."
)


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Lines of a table of findings under one heading: the Run, or Runs, that they are about."""

    where: str
    rows: tuple[FindingRow, ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """What is said of one Run outside of the charts."""

    name: str
    summary: Summary
    problems: int
    matrix: MatrixTable | None
    matrix_at: str
    matrix_note: str
    matrix_empty: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page; ``checks`` are (code, for each Run a word, its class and the finding that it links to, or 0),
    ``not_run`` (code, why, which Runs), ``step_shown`` is the first that is faulty, or the last.
    """

    title: str
    headline: str
    written_at: str
    runs: tuple[RunView, ...]
    findings: tuple[FindingGroup, ...]
    notices: tuple[FindingGroup, ...]
    findings_named: bool
    step_range: tuple[int, int] | None
    step_shown: int
    chart_sections: tuple[ChartSection, ...]
    colour_key: tuple[str, ...]
    checks: tuple[tuple[str, tuple[_Word, ...]], ...]
    check_codes: tuple[str, ...]
    checked_any: bool
    not_run: tuple[tuple[str, str, str], ...]
    not_judged: str
    glance_columns: tuple[str, ...]
    glance: tuple[tuple[str, ...], ...]
    environment: Environment
    problems: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, str], ...]
    sections: tuple[tuple[str, str], ...]


def page_of(readings: Sequence[RunReading]) -> Page:
    """The page for some Runs, in the order given."""
    numbered = _numbered(readings)
    places = [
        marks([(number, reading.report.findings[place]) for place, number in numbers.items()], plot_of(reading))
        for reading, numbers in zip(readings, numbered, strict=True)
    ]
    checks = _checks(readings, numbered)
    charts = (workers_section(readings, places), dispersion_section(readings, places))
    ranges = [reading.step_range for reading in readings if reading.step_range]
    problems = _with_runs([(line, reading.name) for reading in readings for line in reading.run.problems], readings)
    notes = _with_runs([(line, reading.name) for reading in readings for line in reading.notes], readings)
    return Page(
        title=f"Trueline: {clipped(', '.join(reading.name for reading in readings), 80)}",
        headline=headline([(reading.name, reading.report.verdict) for reading in readings]),
        written_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=tuple(_run_view(reading) for reading in readings),
        findings=_finding_groups(readings, numbered),
        findings_named=len(readings) > 1 or any(len(reading.report.incidents) > 1 for reading in readings),
        notices=_notice_groups(readings, first_number=1 + sum(len(rows) for rows in numbered)),
        step_range=(min(first for first, _ in ranges), max(last for _, last in ranges)) if ranges else None,
        step_shown=_step_shown(readings, ranges),
        chart_sections=charts,
        colour_key=tuple(f"{'n' if level < 0 else 'p'}{abs(level)}" for level in range(-LEVELS, LEVELS + 1, 2)),
        checks=checks,
        check_codes=tuple(code for code, _ in checks),
        checked_any=any(reading.report.checks_run for reading in readings),
        not_run=_not_run(readings),
        not_judged="" if any(judges_workers(reading.report.checks_run) for reading in readings) else _NOT_JUDGED,
        glance_columns=("Run", *GLANCE),
        glance=tuple((reading.name, *glance(reading.run)) for reading in readings),
        environment=environment(
            [reading.name for reading in readings],
            [reading.run.manifest for reading in readings],
            [reading.run.env for reading in readings],
        ),
        problems=problems,
        notes=notes,
        sections=(
            ("verdict", "Verdict"),
            ("findings", "Findings"),
            *((section.id, section.title) for section in charts),
            ("cosines", "Cosines"),
            ("checks", "Checks"),
            ("environment", "Environment"),
            *((("problems", "Problems and notes"),) if problems or notes else ()),
        ),
    )


def page_numbers(page: Page, readings: Sequence[RunReading]) -> str:
    """The JSON document that the page's script reads, safe inside a ``script`` element; "" without any step."""
    if page.step_range is None:
        return ""
    document: dict[str, Any] = {
        "levels": LEVELS,
        "charts": {
            chart.id: chart.numbers
            for section in page.chart_sections
            for panel in section.panels
            for chart in panel.charts
            if not chart.empty
        },
        "matrices": {
            str(index): {"ranks": reading.matrices[0].ranks, "steps": matrix_numbers(reading.matrices)}
            for index, reading in enumerate(readings)
            if reading.matrices
        },
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _numbered(readings: Sequence[RunReading]) -> list[_Numbered]:
    """For each Run, its errors and warnings in the order of incidents, numbered from 1 over the page."""
    numbers = count(1)
    return [
        {place: next(numbers) for incident in reading.report.incidents for place in incident.findings}
        for reading in readings
    ]


def _step_shown(readings: Sequence[RunReading], ranges: Sequence[tuple[int, int]]) -> int:
    """The step at which the first incident of the first Run with one begins, else the last step."""
    first, last = min((low for low, _ in ranges), default=0), max((high for _, high in ranges), default=0)
    begins = [
        incident.step_first
        for reading in readings
        for incident in reading.report.incidents
        if incident.step_first is not None
    ]
    return min(max(begins[0], first), last) if begins else last


def _finding_groups(readings: Sequence[RunReading], numbered: Sequence[_Numbered]) -> tuple[FindingGroup, ...]:
    return tuple(
        _incident_group(reading, incident, place, numbers, several_runs=len(readings) > 1)
        for reading, numbers in zip(readings, numbered, strict=True)
        for place, incident in enumerate(reading.report.incidents, start=1)
    )


def _incident_group(
    reading: RunReading, incident: Incident, place: int, numbers: _Numbered, *, several_runs: bool
) -> FindingGroup:
    report = reading.report
    telling = numbers[incident.findings[0]]
    rows = tuple(
        finding_row(
            numbers[each],
            report.findings[each],
            reading.run.ranks,
            explained_by=telling if report.explained(each, incident) else 0,
        )
        for each in incident.findings
    )
    name = f"Incident {place}" if len(report.incidents) > 1 else "" if several_runs else "Incident"
    begins = whose_text(incident.ranks, incident.step_first, report.judged.world_size, interval=incident.between)
    where = ": ".join(part for part in (name, begins) if part)
    return FindingGroup(" · ".join(part for part in (reading.name if several_runs else "", where) if part), rows)


def _notice_groups(readings: Sequence[RunReading], *, first_number: int) -> tuple[FindingGroup, ...]:
    """What is worth knowing, each once with the Runs that share it: most of it says the same of several."""
    lines = [
        (finding_row(0, finding, reading.run.ranks), reading.name)
        for reading in readings
        for finding in reading.report.findings
        if finding.severity == "info"
    ]
    groups: dict[str, list[FindingRow]] = {}
    for place, (row, where) in enumerate(_with_runs(lines, readings), start=first_number):
        groups.setdefault(where or "All Runs", []).append(replace(row, number=place))
    return tuple(FindingGroup(where, tuple(rows)) for where, rows in groups.items())


def _run_view(reading: RunReading) -> RunView:
    matrix = reading.matrices[-1] if reading.matrices else None
    return RunView(
        name=reading.name,
        summary=reading.summary,
        problems=len(reading.run.problems),
        matrix=None if matrix is None else matrix_table(matrix),
        matrix_at="" if matrix is None else steps_words(matrix.step, None),
        matrix_note="" if matrix is None else _matrix_note(matrix),
        matrix_empty=reading.matrices_absent,
    )


def _matrix_note(matrix: CosineMatrix) -> str:
    if matrix.exact:
        return "Exact cosines."
    return f"Each cell ±{number(largest_error(matrix), 3)} at most (one standard error of the sketch)."


def _checks(readings: Sequence[RunReading], numbered: Sequence[_Numbered]) -> tuple[tuple[str, tuple[_Word, ...]], ...]:
    codes = {code for reading in readings for code in reading.report.checks_run}
    codes |= {entry.check for reading in readings for entry in reading.report.checks_not_run}
    words = {
        code: tuple(_check_word(code, reading, numbers) for reading, numbers in zip(readings, numbered, strict=True))
        for code in codes
    }

    def first_to_read(code: str) -> tuple[int, str]:
        return min(_ORDER.index(css) for _, css, _ in words[code]), code

    return tuple((code, words[code]) for code in sorted(codes, key=first_to_read))


def _check_word(code: str, reading: RunReading, numbers: _Numbered) -> _Word:
    found = [(place, finding) for place, finding in enumerate(reading.report.findings) if finding.code == code]
    grave = {numbers[place]: finding.severity for place, finding in found if finding.severity != "info"}
    if grave:
        errors = list(grave.values()).count("error")
        word, css = (counted(errors, "error"), "found") if errors else (counted(len(grave), "warning"), "warned")
        return word, css, min(grave)
    if code not in reading.report.checks_run:
        return "not run", "skipped", 0
    return counted(len(found), "note") if found else "clean", "clean", 0


def _not_run(readings: Sequence[RunReading]) -> tuple[tuple[str, str, str], ...]:
    lines = [
        ((entry.check, entry.why), reading.name) for reading in readings for entry in reading.report.checks_not_run
    ]
    return tuple((code, why, where) for (code, why), where in sorted(_with_runs(lines, readings)))


def _with_runs(lines: Sequence[tuple[_Line, str]], readings: Sequence[RunReading]) -> tuple[tuple[_Line, str], ...]:
    """(line, Run) with equal lines joined: each once, with the Runs that have it, or "" where all do."""
    where: dict[_Line, list[str]] = {}
    for line, name in lines:
        where.setdefault(line, []).append(name)
    return tuple((line, "" if len(names) == len(readings) else listed(names)) for line, names in where.items())
