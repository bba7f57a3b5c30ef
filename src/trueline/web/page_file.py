"""The page as one file that needs no server: its script and styles, and the answers that it would ask for."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlencode

import numpy as np

from trueline.judge.series.dispersion import steps_with_cosines
from trueline.render.report.page_summary import headline
from trueline.render.wording import visible
from trueline.schema.errors import InputError
from trueline.web.answers import Arrays, as_json
from trueline.web.entries import RunEntry, Runs, asset, runs_of
from trueline.web.html_document import policy, version
from trueline.web.judging import Compared
from trueline.web.views.along import GRAVITY
from trueline.web.views.compared import RowsView, compared_view, row_views
from trueline.web.views.cosines import cosines_of
from trueline.web.views.heat import Quantity, heat_of
from trueline.web.views.incident import incident_of
from trueline.web.views.overview import Overview, overview_of
from trueline.web.views.series import series_of
from trueline.web.views.settings import settings_of
from trueline.web.views.signals import Signal, signals_of
from trueline.web.watched_run import WatchedRun

if TYPE_CHECKING:
    from trueline.comparison.result import ComparedRow, Comparison
    from trueline.render.comparison.compare_story import Story

MAX_BYTES = 5_000_000
"""Of the file: what a mail takes."""
_WAYS = ((1024, 400, 100), (512, 100, 100), (256, 24, 64), (128, 12, 32), (64, 3, 16))
"""Columns, signals and lines, from as fine as the page has them to what fits a large Run into the file."""
_HOPELESS = 8 * MAX_BYTES
"""Bytes of numbers before they are packed from which on a way is not tried: they never shrink to an eighth."""
_QUANTITIES: tuple[Quantity, ...] = ("value", "apart")
_MAX_MATRICES, _MAX_MATRIX_RANKS = 24, 64
"""Steps whose cosines are in the file (of few ranks; of more ranks the last alone)."""
_MAX_ROWS = 20_000
"""Values of a comparison that are in the file, the gravest first."""
_MAX_WORDS = 40
"""Lines that are there without scripts."""


def page_file(runs: Sequence[WatchedRun]) -> tuple[str, int]:
    """The document about Runs that are judged, and how many columns their steps share at most. Raises ``InputError``
    where it would be larger than ``MAX_BYTES`` even at the coarsest.
    """
    answers = _words(runs)
    words = _words_of_runs(runs, answers)
    for num_columns, num_signals, num_lines in _WAYS:
        if sum(_num_bytes(watched, num_columns, num_signals, num_lines) for watched in runs) > _HOPELESS:
            continue
        document = _document(answers | _drawings(runs, num_columns, num_signals, num_lines), words)
        if len(document.encode()) <= MAX_BYTES:
            return document, num_columns
    raise InputError(
        f"The page would be larger than {MAX_BYTES / 1e6:g} MB. Export fewer Runs, or use `trueline view`."
    )


def comparison_file(comparison: Comparison, story: Story) -> str:
    """The document about a comparison: the screen Compare, with the ``_MAX_ROWS`` gravest values of it."""
    rows = comparison.rows
    rows_kept = list(rows)
    if len(rows) > _MAX_ROWS:
        # the gravest are kept, in the order of the run
        indices = sorted(range(len(rows)), key=lambda at: _gravity(rows[at], comparison.first))[:_MAX_ROWS]
        rows_kept = [rows[at] for at in sorted(indices)]
    compared = Compared(replace(comparison, rows=rows_kept), story)
    entry = RunEntry(0, comparison.run, comparison.run, comparison.ref, False, ("compare",))
    answers = {
        "api/runs": Runs((entry,), version()),
        "api/runs/0/comparison": compared_view(
            compared, comparison.run, comparison.ref, left_out=len(rows) - len(rows_kept)
        ),
        "api/runs/0/comparison/rows": RowsView(0, len(rows_kept), row_views(enumerate(rows_kept))),
    }
    return _document(answers, _words_of_comparison(compared))


def _gravity(row: ComparedRow, first: ComparedRow | None) -> tuple[bool, int, float]:
    return row != first, -GRAVITY.index(row.judgement), -(row.times or 0.0)


def _num_bytes(watched: WatchedRun, num_columns: int, num_signals: int, num_lines: int) -> int:
    """About how many bytes the numbers of a Run are: a cell of a heat map has 5, a column of a line 13."""
    columns = min(num_columns, watched.run.steps.size)
    ranks = len(watched.run.ranks)
    signals = min(num_signals, len(signals_of(watched).signals))
    return len(_QUANTITIES) * signals * columns * (5 * ranks + 13 * min(ranks, num_lines) + 36)


def _words(runs: Sequence[WatchedRun]) -> dict[str, Any]:
    """The answers that are as long whatever is drawn."""
    answers: dict[str, Any] = {"api/runs": runs_of(runs, served=False)}
    for number, watched in enumerate(runs):
        base = f"api/runs/{number}"
        answers[f"{base}/overview"] = overview_of(watched)
        answers[f"{base}/settings"] = settings_of(watched)
        for number_in in range(1, 1 + len(_incidents(watched))):
            answers[f"{base}/incidents/{number_in}"] = incident_of(watched, number_in)
        for step in _matrix_steps(watched):
            answers[_key(f"{base}/cosines", {"step": str(step)})] = cosines_of(watched, step)
    return answers


def _drawings(runs: Sequence[WatchedRun], num_columns: int, num_signals: int, num_lines: int) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for number, watched in enumerate(runs):
        base = f"api/runs/{number}"
        signals = signals_of(watched)
        kept_signals = signals.signals[:num_signals]
        left_out = len(signals.signals) - len(kept_signals) + signals.truncated
        answers[f"{base}/signals"] = replace(signals, signals=kept_signals, truncated=left_out)
        for signal in kept_signals:
            answers |= _drawn(watched, base, signal, num_columns, num_lines)
    return answers


def _drawn(watched: WatchedRun, base: str, signal: Signal, num_columns: int, num_lines: int) -> dict[str, Any]:
    accused = sorted({rank for accused_ranks in _incidents(watched) for rank in accused_ranks[:4]})
    answers: dict[str, Any] = {}
    for quantity in _QUANTITIES if signal.of == "rank" else _QUANTITIES[:1]:
        query = {"signal": signal.key} | ({"shown": quantity} if quantity != "value" else {})
        if signal.of != "job":
            answers[_key(f"{base}/heat", query)] = heat_of(
                watched, signal.key, num_columns=num_columns, quantity=quantity
            )
        if signal.of != "group":
            answers[_key(f"{base}/series", query)] = series_of(
                watched, signal.key, num_columns=num_columns, pinned=accused, quantity=quantity, max_lines=num_lines
            )
    return answers


def _matrix_steps(watched: WatchedRun) -> list[int]:
    """Steps whose cosines are in the file: evenly spaced, with the first and the last; the last step where none is."""
    steps = steps_with_cosines(watched.run)
    if not steps.size or len(watched.run.ranks) > _MAX_MATRIX_RANKS:
        return [watched.last_step or 0]
    indices = np.linspace(0, steps.size - 1, min(_MAX_MATRICES, steps.size)).round().astype(np.intp)
    return steps[np.unique(indices)].tolist()


def _incidents(watched: WatchedRun) -> list[tuple[int, ...]]:
    report = watched.judgement.report
    return [] if report is None else [report.accused(index) for index in range(len(report.incidents))]


def _key(path: str, query: dict[str, str]) -> str:
    """What the client looks an answer up by: the path that it would ask for, without escapes."""
    return f"{path}?{unquote_plus(urlencode(query))}"


def _words_of_runs(runs: Sequence[WatchedRun], answers: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The text that is read without scripts: a title and lines, the verdict of each Run first, then its incidents."""
    verdicts = [
        (incident.name, incident.judgement.report.verdict) for incident in runs if incident.judgement.report is not None
    ]
    lines: list[str] = []
    for number in range(len(runs)):
        overview: Overview = answers[f"api/runs/{number}/overview"]
        lines += [f"{overview.name}: {overview.headline}", overview.what, *overview.next]
        for incident in overview.incidents:
            lines.append(f"{incident.where}: {incident.severity} {incident.code}: {incident.title}")
        lines += [f"{notice.code}: {notice.claim}" for notice in overview.notices]
    return headline(verdicts) if verdicts else "Cannot tell.", lines


def _words_of_comparison(compared: Compared) -> tuple[str, list[str]]:
    story = compared.story
    facts = [f"{label}: {text}" for label, text in story.facts]
    return story.headline, [*facts, *story.next, story.counts, *story.steps, *story.missing, *story.notes]


def _document(answers: dict[str, Any], words: tuple[str, list[str]]) -> str:
    packed = {
        key: {"base64": base64.b64encode(facts.packed()).decode()}
        if isinstance(facts, Arrays)
        else {"json": json.loads(as_json(facts))}
        for key, facts in answers.items()
    }
    data = gzip.compress(json.dumps(packed, separators=(",", ":")).encode(), mtime=0)  # the same bytes at any time
    # a script element ends at the first such tag, be it in a text
    css, js = asset("page.css").decode(), asset("page.js").decode().replace("</script", "<\\/script")
    title, lines = words
    items = "".join(f"<li>{_escaped(line)}</li>" for line in islice(_non_empty(lines), _MAX_WORDS))
    return _DOCUMENT.format(
        policy=policy(css, js),
        version=version(),
        css=css,
        js=js,
        title=_escaped(title),
        lines=items,
        data=base64.b64encode(data).decode(),
    )


def _non_empty(lines: Sequence[str]) -> Iterator[str]:
    return (line for line in lines if line)


def _escaped(text: str) -> str:
    return escape(str(visible(text)))


_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="Trueline {version}">
<title>Trueline</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<div id="page"><p class="boot">Reading…</p></div>
<noscript><section class="boot">
<h1>{title}</h1><ul class="notes">{lines}</ul><p>Curves and details need scripts.</p>
</section></noscript>
<script type="text/plain" id="answers">{data}</script>
<script>{js}</script>
</body>
</html>
"""
