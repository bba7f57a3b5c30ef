"""Whether a run of a job shows the finding that a trial is about, and not merely that something is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.judge.check_run import CheckReport, check
from trueline.schema.errors import CannotTell, InputError, RunError
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.store.reader import Run

LEAST_PART = 0.5
"""Of what was measured first that another run must measure at least: less is another fault, or the rest of this one."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run: whether it ``showed`` the finding (None: it tells nothing, and ``why``), what it
    ``measured``, and the codes of all errors and warnings in it. ``then`` is what to do about ``why``, where that is
    known.
    """

    showed: bool | None
    why: str = ""
    measured: float | None = None
    codes: tuple[str, ...] = ()
    then: str = ""


@dataclass(frozen=True)
class TargetFinding:
    """The finding that a trial is about. ``kinds`` are the kinds of its sites (phases), ``num_ranks`` the ranks of the
    job in which it was found.
    """

    code: str
    claim: str
    kinds: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    measured: float | None = None
    expected: float | None = None
    false_alarm_rate: float | None = None
    num_ranks: int = 1

    @classmethod
    def from_finding(cls, finding: Finding, *, num_ranks: int) -> TargetFinding:
        """The features of ``finding`` by which another run shows it, too."""
        return cls(
            finding.code,
            finding.claim,
            _kinds(finding),
            frozenset(finding.ranks),
            finding.measured,
            finding.expected,
            finding.false_alarm_rate,
            num_ranks,
        )

    def is_shown_by(self, finding: Finding) -> bool:
        """Code and kind of site are equal, ranks overlap where either names some, and measured is at least half as far
        from what was expected.
        """
        if finding.code != self.code:
            return False
        kinds = _kinds(finding)
        if kinds and self.kinds and not kinds & self.kinds:
            return False
        if self.num_ranks > 1 and self.ranks and finding.ranks and not self.ranks & {*finding.ranks}:
            return False
        now, before = _distance(finding.measured, finding.expected), _distance(self.measured, self.expected)
        return now is None or before is None or now >= LEAST_PART * before


def target_of(run: Run, code: str | None = None) -> TargetFinding:
    """The finding of ``run`` that has ``code``, or else the one that its first incident begins with.

    Raises ``InputError`` where there is none.
    """
    report = check(run)
    if code is not None:
        match = next((finding for finding in report.findings if finding.code == code), None)
        if match is None:
            codes = ", ".join(sorted({finding.code for finding in report.findings})) or "none"
            raise InputError(f"'{code}' is no finding of Run '{run.path}'; it has {codes}.")
    elif report.incidents:
        match = report.findings[report.incidents[0].findings[0]]
    else:
        raise InputError(
            f"Run '{run.path}' shows no fault that a trial could look for again: {report.verdict.line} Give a Run in "
            "which `trueline check` finds one."
        )
    return TargetFinding.from_finding(match, num_ranks=run.world_size)


def outcome_of(path: str, target: TargetFinding, *, ended: str = "", last_step: int | None = None) -> Outcome:
    """The outcome that the Run at ``path`` shows; ``ended`` says how its command did where that was not well. Silence
    is no health: without the finding a Run is clean only if its check ran, and it reached ``last_step``.
    """
    try:
        run = Run(path)
        report = check(run)
    except (CannotTell, RunError) as error:
        return Outcome(None, ended or str(error))
    # a run goes on for some updates until its last step is on disk: what begins in these is no finding of that step
    findings = [finding for finding in report.findings if last_step is None or (finding.step_first or 0) <= last_step]
    codes = tuple(sorted({finding.code for finding in findings if finding.is_grave}))
    matches = [finding for finding in findings if target.is_shown_by(finding)]
    if matches:
        largest = max((finding.measured for finding in matches if finding.measured is not None), default=None)
        # the finding counts however the command ended: many faults end it
        return Outcome(True, measured=largest, codes=codes)
    if ended:
        return Outcome(None, ended, codes=codes)
    # a check that had no data for it is silent, and that is no health
    if target.code not in report.checks_run:
        return Outcome(None, _why_not(report, target.code), codes=codes)
    reached = int(run.steps[-1]) if run.steps.size else -1
    if last_step is not None and reached < last_step:
        why = f"it ended after step {reached}, and step {last_step} is needed"
        return Outcome(None, why, codes=codes, then=f"Ask for no more steps than it makes: --steps {reached + 1}.")
    weaker = [finding.measured for finding in findings if finding.code == target.code and finding.measured is not None]
    return Outcome(False, measured=max(weaker, default=None), codes=codes)


def _why_not(report: CheckReport, code: str) -> str:
    why = next((entry.why for entry in report.checks_not_run if entry.check == code), "it was not reported")
    return f"{code} could not be judged: {why}"


def _kinds(finding: Finding) -> frozenset[str]:
    return frozenset(Site.parse(site).phase for site in finding.sites)


def _distance(measured: float | None, expected: float | None) -> float | None:
    return None if measured is None else abs(measured - (expected or 0.0))
