"""Up to which step a Run is known to be clean."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.judge.check_run import CheckReport
from trueline.judge.incidents import begins_within
from trueline.judge.stats.alarm_budget import alarm_budget_of
from trueline.schema.finding import JOB_DIED, Finding
from trueline.store.clean import Clean, OpenFault
from trueline.store.reader import Run


def clean_of(report: CheckReport, run: Run, judged_to: int) -> Clean:
    """What ``report`` says of a Run that was judged up to step ``judged_to``."""
    faults = open_faults(report.findings)
    first = int(run.steps[0]) if run.steps.size else 0
    is_judged = bool(run.steps.size) and judged_to >= first
    return Clean(
        run=report.run,
        step=last_clean_step(faults, first) if faults else judged_to if is_judged else None,
        judged_to=judged_to if is_judged else None,
        false_alarms=alarm_budget_of(run).false_alarms,
        faults=tuple(
            OpenFault(fault.code, fault.severity, fault.step_first, fault.claim, fault.false_alarm_rate)
            for fault in faults
        ),
        not_looked_at=tuple(f"{entry.check}: {entry.why}" for entry in report.checks_not_run if entry.lacks),
    )


def open_faults(findings: Sequence[Finding]) -> list[Finding]:
    """Errors and warnings of the numbers; that a job died says nothing of these."""
    return [finding for finding in findings if finding.is_grave and finding.code != JOB_DIED]


def last_clean_step(findings: Sequence[Finding], first: int) -> int | None:
    """The last step before the evidence of all errors and warnings among ``findings``, of a Run that begins with the
    step ``first``; None where there is none, or one of them is of no step.
    """
    faults = open_faults(findings)
    if not faults or any(finding.step_first is None for finding in faults):
        return None
    begin = min(begins_within(finding)[0] for finding in faults)
    return begin - 1 if begin > first else None
