"""What is said of a planted run with less to go by: causes that are not known, checks that did not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gallery.entry import Fault, all_entries
from gallery.independence import family_of, placed, true_causes
from gallery.scoring import CauseFound, answer_on, cause_found

from trueline.judge.causes.diagnosis import Diagnosis
from trueline.judge.causes.library import known_causes
from trueline.judge.causes.verdicts import CauseVerdict, verdicts_of
from trueline.judge.check_run import CheckReport
from trueline.schema.judged import NotRun

OUTCOMES: tuple[CauseFound, ...] = ("named", "abstained", "wrong", "none")

Outcomes = list[tuple[str, CauseFound]]
"""Of each case the id of the fault, and what was said of its cause."""


def without_causes(reports: Mapping[str, CheckReport], *, of_family: bool) -> Outcomes:
    """With the true causes of each fault unknown, or those of its whole family."""
    faults = _faults()
    outcomes: Outcomes = []
    for id, report in reports.items():
        alike = {each for each in placed() if family_of(each) == family_of(id)} if of_family else set()
        left_out = {slug for each in (id, *alike) for slug in true_causes(each)}
        others = [cause for cause in known_causes() if cause.slug not in left_out]
        told = {verdict.incident: verdict for verdict in reversed(verdicts_of(report, others))}
        outcomes.append((id, cause_found(faults[id], told[_incident(faults[id], report)])))
    return outcomes


def without_checks(reports: Mapping[str, CheckReport]) -> Outcomes:
    """With each check that found something in turn as if it had not run: of the fault's incident, else the first."""
    faults = _faults()
    outcomes: Outcomes = []
    for id, report in reports.items():
        for code in sorted({finding.code for finding in report.findings if finding.is_grave}):
            outcomes.append((id, cause_found(faults[id], _answer(faults[id], _unchecked(report, code)))))
    return outcomes


def _faults() -> dict[str, Fault]:
    return {entry.id: entry for entry in all_entries() if isinstance(entry, Fault)}


def _unchecked(report: CheckReport, code: str) -> CheckReport:
    """``report`` as if the check of ``code`` had not run."""
    questions = tuple(
        replace(
            asked,
            checks_run=tuple(each for each in asked.checks_run if each != code),
            checks_not_run=(*asked.checks_not_run, NotRun(code, "it was left out", "undecidable")),
        )
        if code in asked.checks_run
        else asked
        for asked in report.judged.questions
    )
    findings = tuple(finding for finding in report.findings if finding.code != code)
    return replace(report, findings=findings, judged=replace(report.judged, questions=questions))


def _answer(fault: Fault, report: CheckReport) -> CauseVerdict | None:
    return report.cause(_incident(fault, report)) if report.incidents else None


def _incident(fault: Fault, report: CheckReport) -> int:
    """The place of the incident that ``fault`` is judged by, else of the first."""
    answer = answer_on(fault, Diagnosis(report))
    return 0 if answer is None else answer.incident
