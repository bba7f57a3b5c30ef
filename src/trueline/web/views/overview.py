"""The first screen: the verdict beside the curve that it is about, what few trainings do, a line for each incident,
what was asked and what is left open, and what watching covers and costs.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trueline.judge.lasting import over_since
from trueline.render.report.glance import GLANCE, glance
from trueline.render.report.page_summary import summary
from trueline.render.wording import false_alarm
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding, Severity
from trueline.schema.judged import QUESTIONS, State, Status
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run
from trueline.web.views.sparkline import Sparkline, signal_of, sparkline_of
from trueline.web.watched_run import WatchedRun

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport
    from trueline.judge.incidents import Incident


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """One incident in a line. ``key`` stays the same while the Run grows; ``lasts`` says that a finding of it is still
    so at the last look, and ``until`` says it in words.
    """

    number: int
    key: str
    severity: Severity
    title: str
    code: str
    ranks: str
    since: str
    where: str
    false_alarms: str
    likely: str
    num_findings: int
    lasts: bool
    until: str
    signal: str
    sparkline: Sparkline | None


@dataclass(frozen=True, slots=True)
class Notice:
    """A finding that is no fault: worth knowing, or to confirm, where ``code`` is its id."""

    code: str
    claim: str


@dataclass(frozen=True, slots=True)
class TrainingArea:
    """What the training did, of one area, a line a fact."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Checks that did not run, for one reason."""

    checks: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of the Run, how far it was answered, and by which checks; ``faulty`` where one of these found a
    fault.
    """

    words: str
    state: State
    faulty: bool
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """The curve beside the verdict: ``signal`` over steps ``first`` to ``last``, of the ``ranks`` that are accused.

    It is that of incident number ``incident``, which began at step ``onset``; of a healthy Run (None) the loss of all
    ranks.
    """

    signal: str
    ranks: tuple[int, ...]
    first: int | None
    last: int | None
    onset: int | None
    incident: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All of the first screen. ``status`` is None, and the verdict about the judging itself, until the first judgement
    is there; ``judged_to`` is the step that it saw last. ``untold`` says what of the training the Run does not tell.
    """

    name: str
    path: str
    status: Status | None
    headline: str
    what: str
    next: tuple[str, ...]
    judging: bool
    judged_to: int | None
    last_step: int | None
    live: bool
    gone: str
    failed: str
    picture: Picture | None
    loss: Sparkline | None
    incidents: tuple[IncidentLine, ...]
    confirm: tuple[Notice, ...]
    confirm_commands: tuple[str, ...]
    training: tuple[TrainingArea, ...]
    untold: str
    notices: tuple[Notice, ...]
    unchecked: tuple[Unchecked, ...]
    questions: tuple[Question, ...]
    checked: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def overview_of(watched: WatchedRun) -> Overview:
    """The first screen of a Run, as far as it is judged."""
    run, judgement = watched.run, watched.judgement
    report = judgement.report
    words = None if report is None else summary(report)
    incidents = () if report is None else tuple(_lines(watched, report))
    training = None if report is None else report.facts
    facts = _facts(watched)  # like the lines, these may find that the Run is gone
    return Overview(
        name=watched.name,
        path=run.path,
        status=None if report is None else report.verdict.status,
        headline=_headline(watched),
        what="" if words is None else words.what,
        next=() if words is None else words.next,
        judging=watched.is_judging,
        judged_to=judgement.last_step,
        last_step=watched.last_step,
        live=watched.live,
        gone=watched.read_failure,
        failed=judgement.failed,
        picture=_picture(watched),
        loss=_sparkline(watched, "loss", ()),
        incidents=incidents,
        confirm=() if report is None else tuple(Notice(finding.id, finding.claim) for finding in report.to_confirm),
        confirm_commands=() if report is None else _confirm_commands(run, report),
        training=()
        if training is None
        else tuple(TrainingArea(name, tuple(lines)) for name, lines in training.by_area()),
        untold="" if training is None else training.unknown_line,
        notices=tuple(
            Notice(finding.code, finding.claim)
            # until the first judgement, what the ranks' own checks said as the job ran
            for finding in (run.live_findings if report is None else report.worth_knowing)
        ),
        unchecked=() if words is None else tuple(Unchecked(tuple(checks), why) for checks, why in words.unchecked),
        questions=() if report is None else _questions(report),
        checked="" if words is None else words.checked,
        facts=facts,
        notes=tuple(dict.fromkeys([*(report.notes if report else run.problems), *_rank_notes(run)])),
    )


def _headline(watched: WatchedRun) -> str:
    report = watched.judgement.report
    if report is not None:
        return report.verdict.line
    if watched.judgement.failed:
        return "Cannot tell: judging failed."
    if watched.read_failure:
        return "Cannot tell: the Run is gone."
    return "Not judged yet."


def _confirm_commands(run: Run, report: CheckReport) -> tuple[str, ...]:
    """Of each finding to confirm the command that says that it is meant."""
    return tuple(f"trueline confirm {shlex.quote(run.path)} {finding.id}" for finding in report.to_confirm)


def _questions(report: CheckReport) -> tuple[Question, ...]:
    codes = {finding.code for finding in report.findings if finding.is_grave}
    return tuple(
        Question(
            QUESTIONS[question.question],
            question.state,
            faulty=not codes.isdisjoint(question.checks_run),
            checks=question.checks_run,
        )
        for question in report.judged.questions
    )


def _picture(watched: WatchedRun) -> Picture | None:
    """The curve of the gravest incident that has one, or the loss."""
    report = watched.judgement.report
    for index, incident in enumerate(report.incidents if report else ()):
        signals = (signal_of(report.findings[finding].code) for finding in incident.findings)
        if signal := next((signal for signal in signals if signal), ""):
            first, last = drawn_steps(incident, report)
            return Picture(signal, report.accused(index)[:4], first, last, incident.step_first, index + 1)
    try:
        with watched.reading():
            has_loss = watched.run.steps.size and watched.pivot("loss")[1].any()
    except RunError:
        return None
    return Picture("loss", (), None, None, None, None) if has_loss else None


_MARGIN = 0.5
"""Steps that are drawn before and after an incident, as a share of how long it lasted."""


def drawn_steps(incident: Incident, report: CheckReport) -> tuple[int | None, int | None]:
    """The first and last step to draw of an incident: some healthy ones on both sides, where there are any."""
    if incident.step_first is None or report.judged.steps is None:
        return report.judged.steps or (None, None)
    first, last = report.judged.steps
    ends = [report.findings[index].step_last for index in incident.findings]
    end = max((step for step in ends if step is not None), default=incident.step_first)
    # so that a short incident is seen between healthy steps
    margin = max(int((end - incident.step_first) * _MARGIN), 20)
    return max(first, incident.step_first - margin), min(last, end + margin)


def _facts(watched: WatchedRun) -> tuple[tuple[str, str], ...]:
    try:
        with watched.reading():
            return tuple(zip(GLANCE, glance(watched.run), strict=True))
    except RunError:
        # the Run was moved or removed since the page was opened: the rest of it still tells what was judged
        return ()


def _lines(watched: WatchedRun, report: CheckReport) -> list[IncidentLine]:
    return [_line(watched, report, index, incident) for index, incident in enumerate(report.incidents)]


def _line(watched: WatchedRun, report: CheckReport, index: int, incident: Incident) -> IncidentLine:
    main_finding = report.findings[incident.findings[0]]
    likely = report.cause(index)
    end_step = _over_since(watched, [report.findings[finding_index] for finding_index in incident.findings])
    accused = report.accused(index)
    return IncidentLine(
        number=index + 1,
        key=key_of(main_finding.code, incident),
        severity=incident.severity,
        title=incident.title,
        code=main_finding.code,
        ranks=ranks_text(accused, all_ranks=watched.run.ranks, dash="–"),
        since="" if (began := report.began(index).step_first) is None else str(began),
        where=report.where(index),
        false_alarms=false_alarm(main_finding.false_alarm_rate),
        likely=likely.shortly if likely.is_likely else "",
        num_findings=len(incident.findings),
        lasts=end_step is None,
        until=_ending_text(watched, end_step, report.judged.steps),
        signal=signal_of(main_finding.code),
        sparkline=_sparkline(watched, signal_of(main_finding.code), accused),
    )


def _over_since(watched: WatchedRun, findings: list[Finding]) -> int | None:
    try:
        with watched.reading():
            return over_since(watched.run, findings)
    except RunError:
        return None


def _ending_text(watched: WatchedRun, end_step: int | None, steps: tuple[int, int] | None) -> str:
    """``still so at step 217, the last judged``, ``until the end``, ``over since step 85``."""
    if end_step is not None:
        return f"over since step {end_step}"
    if steps is None:
        return ""
    return f"still so at step {steps[1]}, the last judged" if watched.live else "until the end"


def _sparkline(watched: WatchedRun, signal: str, ranks: tuple[int, ...]) -> Sparkline | None:
    try:
        with watched.reading():
            return sparkline_of(watched, signal, ranks)
    except RunError:
        return None


def key_of(code: str, incident: Incident) -> str:
    """A short text that tells an incident from others, also once there are more."""
    ranks: Literal["all"] | str = "-".join(map(str, incident.ranks[:4])) or "all"
    return f"{code}.{ranks}"


def _rank_notes(run: Run) -> list[str]:
    """Notes of the ranks, each once with who left it."""
    by_note: dict[str, list[int]] = {}
    for rank, env in sorted(run.env.items()):
        for note in env.notes:
            by_note.setdefault(note, []).append(rank)
    return [f"{ranks_text(ranks, all_ranks=run.ranks, dash='–')}: {note}" for note, ranks in by_note.items()]
