"""The page as one file that needs no server: its script and styles, and the answers that it would ask for."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus, urlencode

from trueline.render.html_document import policy, version
from trueline.schema.errors import InputError
from trueline.web.answers import Arrays, as_json
from trueline.web.application import RunEntry, Runs, asset
from trueline.web.views.cosines import cosines_of
from trueline.web.views.heat import Shown, heat_of
from trueline.web.views.incident import incident_of
from trueline.web.views.series import series_of
from trueline.web.views.signals import Signals, signals_of
from trueline.web.views.triage import triage_of
from trueline.web.watched_run import WatchedRun

MAX_BYTES = 5_000_000
"""Of the file: what a mail takes."""
_WAYS = ((1024, 400, 100), (512, 100, 100), (256, 24, 64), (128, 12, 32), (64, 3, 16))
"""Columns, signals and lines, from as fine as the page has them to what fits a large Run into the file."""
_SHOWN: tuple[Shown, ...] = ("value", "apart")


def page_file(runs: Sequence[WatchedRun]) -> tuple[str, int]:
    """The document about Runs that are judged, and how many columns their steps share at most. Raises ``InputError``
    where it would be larger than ``MAX_BYTES`` even at the coarsest.
    """
    for num_columns, num_signals, num_lines in _WAYS:
        document = _document(_answers(runs, num_columns, num_signals, num_lines))
        if len(document.encode()) <= MAX_BYTES:
            return document, num_columns
    raise InputError(
        f"The page would be larger than {MAX_BYTES / 1e6:g} MB. Export fewer Runs, or use `trueline view`."
    )


def _answers(runs: Sequence[WatchedRun], num_columns: int, num_signals: int, num_lines: int) -> dict[str, Any]:
    entries = tuple(RunEntry(number, each.name, each.run.path, None, False) for number, each in enumerate(runs))
    answers: dict[str, Any] = {"api/runs": Runs(entries, version())}
    for number, watched in enumerate(runs):
        base = f"api/runs/{number}"
        report = watched.judgement.report
        answers[f"{base}/triage"] = triage_of(watched)
        for place in range(1, 1 + (len(report.incidents) if report else 0)):
            answers[f"{base}/incidents/{place}"] = incident_of(watched, place)
        signals = signals_of(watched)
        kept = signals.signals[:num_signals]
        left_out = len(signals.signals) - len(kept) + signals.truncated
        answers[f"{base}/signals"] = _with(signals, kept, left_out)
        for signal in kept:
            answers |= _drawn(watched, base, signal.key, num_columns, num_lines)
        answers[f"{base}/cosines"] = cosines_of(watched, watched.last_step or 0)
    return answers


def _drawn(watched: WatchedRun, base: str, signal: str, num_columns: int, num_lines: int) -> dict[str, Any]:
    accused = sorted({rank for each in _incidents(watched) for rank in each[:4]})
    answers: dict[str, Any] = {}
    for shown in _SHOWN:
        asked = {"signal": signal} | ({"shown": shown} if shown != "value" else {})
        answers[_key(f"{base}/heat", asked)] = heat_of(watched, signal, num_columns=num_columns, shown=shown)
        answers[_key(f"{base}/series", asked)] = series_of(
            watched, signal, num_columns=num_columns, pinned=accused, shown=shown, max_lines=num_lines
        )
    return answers


def _incidents(watched: WatchedRun) -> list[tuple[int, ...]]:
    report = watched.judgement.report
    return [] if report is None else [incident.ranks for incident in report.incidents]


def _with(signals: Signals, kept: Sequence[Any], left_out: int) -> Signals:
    return replace(signals, signals=tuple(kept), truncated=left_out)


def _key(path: str, asked: dict[str, str]) -> str:
    """What the client looks an answer up by: the path that it would ask for, without escapes."""
    return f"{path}?{unquote_plus(urlencode(asked))}"


def _document(answers: dict[str, Any]) -> str:
    packed = {
        key: {"base64": base64.b64encode(made.packed()).decode()}
        if isinstance(made, Arrays)
        else {"json": json.loads(as_json(made))}
        for key, made in answers.items()
    }
    data = gzip.compress(json.dumps(packed, separators=(",", ":")).encode(), mtime=0)
    css, js = asset("page.css").decode(), asset("page.js").decode().replace("</script", "<\\/script")
    return _DOCUMENT.format(
        policy=policy(css, js), version=version(), css=css, js=js, data=base64.b64encode(data).decode()
    )


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
<noscript><p class="boot">This page needs scripts.</p></noscript>
<script type="text/plain" id="answers">{data}</script>
<script>{js}</script>
</body>
</html>
"""
