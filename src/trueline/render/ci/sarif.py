"""SARIF 2.1.0, which code scanning of GitHub, GitLab and Azure shows beside the lines of a script.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html; what GitHub reads of it is in
https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trueline.render.ci.places import path_within
from trueline.schema.command_words import script_in
from trueline.schema.live import whose_and_since, with_advice

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport
    from trueline.schema.finding import Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "confirm": "note", "info": "note"}

CANNOT_TELL = "cannot-tell"
"""The rule of a Run of which too little was judged: its result is an error, so that nothing found is not green."""


def sarif(report: CheckReport, folder: Path | None = None) -> str:
    """The document: a result for each finding, at the user's own line or, where no line is known, at the top of the
    script. Files in ``folder``, which is the working directory if None, are named from there, as code scanning needs.
    """
    folder = (folder or Path.cwd()).resolve()
    script = script_in(report.job)
    results = [_result(finding, folder, script) for finding in report.findings]
    if report.exit_code == 3:
        results.insert(0, _of_rule(CANNOT_TELL, "error", report.verdict.line, _locations(script, None, folder)))
    rules = dict.fromkeys(result["ruleId"] for result in results)
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "trueline",
                        "version": version("trueline"),
                        "rules": [_rule(code) for code in rules],
                    }
                },
                "originalUriBaseIds": {"%SRCROOT%": {"uri": f"{folder.as_uri()}/"}},
                "invocations": [{"executionSuccessful": report.exit_code != 3, "exitCode": report.exit_code}],
                "results": results,
                "properties": {"run": report.run, "verdict": report.verdict.line, "notes": list(report.notes)},
            }
        ],
    }
    return json.dumps(document, indent=2)


def _rule(code: str) -> dict[str, Any]:
    says = (
        "Too little was judged: that nothing was found says nothing. `trueline check RUN --all` says what is missing."
        if code == CANNOT_TELL
        else f"`trueline explain {code}` says what it finds, how it decides and what it may miss."
    )
    return {"id": code, "shortDescription": {"text": code.replace("-", " ")}, "help": {"text": says}}


def _result(finding: Finding, folder: Path, script: str | None) -> dict[str, Any]:
    head = ", ".join(whose_and_since(finding))
    text = with_advice(f"{head}: {finding.claim}" if head else finding.claim, finding)
    where = finding.where
    file, line = (script, None) if where.file is None else (where.file, where.line)
    result = _of_rule(finding.code, _LEVELS[finding.severity], text, _locations(file, line, folder))
    # a finding of the next Run is the same one for code scanning as long as its id is
    return result | {"partialFingerprints": {"trueline/v1": finding.id}, "properties": {"severity": finding.severity}}


def _of_rule(code: str, level: str, text: str, locations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"ruleId": code, "level": level, "message": {"text": text}, "locations": list(locations)}


def _locations(file: str | None, line: int | None, folder: Path) -> list[dict[str, Any]]:
    if file is None:
        return []
    inside = path_within(folder, file)
    artifact = {"uri": (folder / file).resolve().as_uri()}
    if inside is not None:
        artifact = {"uri": quote(inside), "uriBaseId": "%SRCROOT%"}
    return [{"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line or 1}}}]
