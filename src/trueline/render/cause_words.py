"""What speaks for and against a cause, in words: the command line and the page say it alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueline.judge.causes.verdicts import CauseVerdict
    from trueline.judge.check_run import CheckReport
    from trueline.schema.finding import Finding


def speaking_for(report: CheckReport, verdict: CauseVerdict) -> list[str]:
    """``code: claim`` of findings of the incident that the cause brings, then of those for information, then facts."""
    findings = [report.findings[index] for index in report.incidents[verdict.incident].findings]
    weak = set(verdict.because) - {finding.code for finding in findings}
    notices = [finding for finding in report.findings if not finding.is_grave]
    return [
        *(f"{code}: {claim}" for code, claim in _claims(findings, verdict.because)),
        *(f"{code} (for information): {claim}" for code, claim in _claims(notices, weak)),
        *_facts(report, weak),
    ]


def _facts(report: CheckReport, signs: Collection[str]) -> list[str]:
    facts = () if report.facts is None else report.facts.facts
    return [f"{sign}: {fact.line}" for fact in facts for mark in fact.marks if (sign := f"fact:{mark}") in signs]


def speaking_against(findings: Sequence[Finding], verdict: CauseVerdict) -> list[str]:
    """Findings that the cause does not bring, with what they say, and checks that it would fail and did not."""
    claims = dict(_claims(findings, verdict.against))
    return [f"{code}: {claims[code]}" if code in claims else f"{code}: nothing found" for code in verdict.against]


def excluded_because(findings: Sequence[Finding], verdict: CauseVerdict) -> str:
    """An excluded cause with the signs that contradict it."""
    codes_found = {finding.code for finding in findings}
    signs = [
        f"{sign} was found" if sign.partition("/")[0] in codes_found else f"{sign} was not found"
        for sign in verdict.against
    ]
    return f"{verdict.says} ({verdict.cause}): {', '.join(signs)}"


def _claims(findings: Sequence[Finding], codes: Collection[str]) -> list[tuple[str, str]]:
    return [(finding.code, finding.claim) for finding in findings if finding.code in codes]
