"""Everything on the page, worded and placed: what the template fills in without thinking."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

import numpy as np

from trueline.analyze.dispersion import CosineMatrix
from trueline.schema.finding import Finding
from trueline.view.environment import Environment, environment
from trueline.view.finding_row import FindingRow, finding_row
from trueline.view.mark import marks
from trueline.view.matrix import LEVELS, MatrixTable, largest_error, matrix_numbers, matrix_table
from trueline.view.panel import ChartSection, dispersion_section, plot_of, workers_section
from trueline.view.report_data import RunReading
from trueline.view.verdict import Verdict, headline, judges_workers
from trueline.view.wording import clipped, counted, listed, number, seconds_words, steps_words

_Line = TypeVar("_Line", bound=Hashable)
_GLANCE = ("Run", "Workers", "Steps", "Watched as", "Gradient signals", "Step time", "Cost of watching", "Started")
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
    verdict: Verdict
    problems: int
    matrix: MatrixTable | None
    matrix_at: str
    matrix_note: str
    matrix_empty: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page; ``checks`` are (code, a word and a class for each Run), ``not_run`` (code, why, which Runs)."""

    title: str
    headline: str
    written_at: str
    runs: tuple[RunView, ...]
    findings: tuple[FindingGroup, ...]
    notices: tuple[FindingGroup, ...]
    step_range: tuple[int, int] | None
    chart_sections: tuple[ChartSection, ...]
    colour_key: tuple[str, ...]
    checks: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
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
    places = [marks(rows, plot_of(reading)) for reading, rows in zip(readings, numbered, strict=True)]
    charts = (workers_section(readings, places), dispersion_section(readings, places))
    ranges = [reading.step_range for reading in readings if reading.step_range]
    problems = _with_runs([(line, reading.name) for reading in readings for line in reading.run.problems], readings)
    notes = _with_runs([(line, reading.name) for reading in readings for line in reading.notes], readings)
    return Page(
        title=f"Trueline: {clipped(', '.join(reading.name for reading in readings), 80)}",
        headline=headline([(reading.name, reading.verdict) for reading in readings]),
        written_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=tuple(_run_view(reading) for reading in readings),
        findings=_finding_groups(readings, numbered),
        notices=_notice_groups(readings, first_number=1 + sum(len(rows) for rows in numbered)),
        step_range=(min(first for first, _ in ranges), max(last for _, last in ranges)) if ranges else None,
        chart_sections=charts,
        colour_key=tuple(f"{'n' if level < 0 else 'p'}{abs(level)}" for level in range(-LEVELS, LEVELS + 1, 2)),
        checks=_checks(readings),
        checked_any=any(reading.report.checks_run for reading in readings),
        not_run=_not_run(readings),
        not_judged="" if any(judges_workers(reading.report.checks_run) for reading in readings) else _NOT_JUDGED,
        glance_columns=_GLANCE,
        glance=tuple(_glance(reading) for reading in readings),
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


def _numbered(readings: Sequence[RunReading]) -> list[list[tuple[int, Finding]]]:
    """The errors and warnings of each Run with a number that is unique on the page, from 1."""
    numbers = count(1)
    return [
        [(next(numbers), finding) for finding in reading.report.findings if _grave(finding)] for reading in readings
    ]


def _grave(finding: Finding) -> bool:
    return finding.severity != "info"


def _finding_groups(
    readings: Sequence[RunReading], numbered: Sequence[Sequence[tuple[int, Finding]]]
) -> tuple[FindingGroup, ...]:
    return tuple(
        FindingGroup(reading.name, tuple(finding_row(place, finding, reading.run.ranks) for place, finding in rows))
        for reading, rows in zip(readings, numbered, strict=True)
        if rows
    )


def _notice_groups(readings: Sequence[RunReading], *, first_number: int) -> tuple[FindingGroup, ...]:
    """What is worth knowing, each once with the Runs that share it: most of it says the same of several."""
    lines = [
        (finding_row(0, finding, reading.run.ranks), reading.name)
        for reading in readings
        for finding in reading.report.findings
        if not _grave(finding)
    ]
    groups: dict[str, list[FindingRow]] = {}
    for place, (row, where) in enumerate(_with_runs(lines, readings), start=first_number):
        groups.setdefault(where or "All Runs", []).append(replace(row, number=place))
    return tuple(FindingGroup(where, tuple(rows)) for where, rows in groups.items())


def _run_view(reading: RunReading) -> RunView:
    matrix = reading.matrices[-1] if reading.matrices else None
    return RunView(
        name=reading.name,
        verdict=reading.verdict,
        problems=len(reading.run.problems),
        matrix=None if matrix is None else matrix_table(matrix),
        matrix_at="" if matrix is None else steps_words(matrix.step, None),
        matrix_note="" if matrix is None else _matrix_note(matrix),
        matrix_empty=reading.matrix_absent,
    )


def _matrix_note(matrix: CosineMatrix) -> str:
    if matrix.exact:
        return "Exact cosines."
    return f"Each cell ±{number(largest_error(matrix), 3)} at most (one standard error of the sketch)."


def _checks(readings: Sequence[RunReading]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    codes = {code for reading in readings for code in reading.report.checks_run}
    codes |= {entry.check for reading in readings for entry in reading.report.checks_not_run}
    return tuple((code, tuple(_check_word(code, reading) for reading in readings)) for code in sorted(codes))


def _check_word(code: str, reading: RunReading) -> tuple[str, str]:
    found = [finding for finding in reading.report.findings if finding.code == code]
    grave = [finding.severity for finding in found if finding.severity != "info"]
    if grave:
        errors = grave.count("error")
        return (counted(errors, "error"), "found") if errors else (counted(len(grave), "warning"), "warned")
    if code not in reading.report.checks_run:
        return "not run", "skipped"
    return (counted(len(found), "note"), "clean") if found else ("clean", "clean")


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


def _glance(reading: RunReading) -> tuple[str, ...]:
    run = reading.run
    step_s_TN, timed_TN = run.pivot("step_s")
    own_s_TN, own_TN = run.pivot("own_s")
    both_TN = timed_TN & own_TN & (np.nan_to_num(step_s_TN) > 0)
    norms = reading.workers["grad_norm"].measured_only()
    gaps = np.diff(norms.steps_T)
    every = f"every {counted(int(np.median(gaps)), 'step')}" if gaps.size else counted(norms.steps_T.size, "step")
    steps = f"{run.steps.size:,} ({run.steps[0]}–{run.steps[-1]})" if run.steps.size else "none"
    left = len(run.ranks)
    return (
        reading.name,
        f"{run.world_size}" if left == run.world_size else f"{left} of {run.world_size}",
        steps,
        run.manifest.adapter or "not stated",
        "every step" if every == "every 1 step" else every,
        seconds_words(float(np.median(step_s_TN[timed_TN]))) if timed_TN.any() else "not measured",
        f"{100 * float(np.median(own_s_TN[both_TN] / step_s_TN[both_TN])):.2g} % of step time"
        if both_TN.any()
        else "not measured",
        _moment(run.manifest.started_at),
    )


def _moment(iso: str) -> str:
    """An ISO 8601 time to the second, as text; what cannot be parsed stays as it is."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return iso or "not stated"
