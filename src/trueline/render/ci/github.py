"""GitHub Actions: workflow commands, which become annotations of the job.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions; what has to be escaped is from
``actions/toolkit``, ``packages/core/src/command.ts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trueline.render.ci.places import path_within
from trueline.render.wording import visible
from trueline.schema.live import whose_and_since, with_advice

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport
    from trueline.schema.finding import Finding

_COMMANDS = {"error": "error", "warning": "warning", "confirm": "notice", "info": "notice"}
_IN_TEXT = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = _IN_TEXT | {":": "%3A", ",": "%2C"}


def annotations(report: CheckReport) -> str:
    """One line a finding, the gravest first, and one for the verdict: a warning where nothing can be told."""
    lines = [_annotation(finding) for finding in report.findings]
    kind = {0: "notice", 1: "error", 3: "warning"}[report.exit_code]
    return "\n".join([_line(kind, f"trueline check {report.run}", report.verdict.line), *lines])


def _annotation(finding: Finding) -> str:
    title = " · ".join((finding.code, *whose_and_since(finding)))
    where = finding.where
    position: dict[str, object] = {}
    # a file of another position is no line of the pull request
    if where.file is not None and (path := path_within(Path.cwd(), where.file)) is not None:
        position = {"file": path, "line": where.line}
    return _line(_COMMANDS[finding.severity], title, with_advice(finding.claim, finding), position)


def _line(kind: str, title: str, text: str, position: Mapping[str, object] | None = None) -> str:
    further = "".join(f",{name}={_escaped(str(value), _IN_PROPERTY)}" for name, value in (position or {}).items())
    return f"::{kind} title={_escaped(title, _IN_PROPERTY)}{further}::{_escaped(text, _IN_TEXT)}"


def _escaped(text: str, replacements: dict[str, str]) -> str:
    return str(visible(text)).translate(str.maketrans(replacements))
