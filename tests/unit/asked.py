"""What some checks say of a Run: all of them, which `trueline.check` asks, take some ten times as long."""

from __future__ import annotations

import os

import trueline
from trueline.judge.asking import ask_checks
from trueline.judge.registry import installed_checks
from trueline.schema.finding import Finding, by_weight
from trueline.schema.judged import NotRun
from trueline.store.reader import Run


def asked(run: str | os.PathLike[str] | Run, *codes: str) -> tuple[list[Finding], list[str]]:
    """What the checks of ``codes`` find in ``run``, errors first, and why those of them that have no answer have none.
    All parts of watching must have worked.
    """
    opened = run if isinstance(run, Run) else trueline.open_run(run)
    assert not [finding for finding in opened.live_findings if finding.code == "watch-degraded"]
    checks = [check for check in installed_checks() if check.code in codes]
    assert len(checks) == len(codes)
    answers = ask_checks(opened, opened, checks, None)[0].values()
    findings = [finding for answer in answers if not isinstance(answer, NotRun) for finding in answer]
    return sorted(findings, key=by_weight), [answer.why for answer in answers if isinstance(answer, NotRun)]
