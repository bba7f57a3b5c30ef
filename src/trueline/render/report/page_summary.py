"""What a page says of a Run at its top: the verdict, the most telling finding, what to do next, what was checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueline.render.wording import steps_words
from trueline.schema.judged import WORDS, Verdict
from trueline.schema.law import facts_of
from trueline.schema.text.words import by_reason, counted, listed

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport

_MAX_NEXT = 3
_LIMIT = (
    "None of the checks that ran judges whether one rank’s loss, gradient norm or direction is unusual: look at the "
    "charts."
)


_NEXT_WITHOUT_ROWS = (
    "Run the job below `trueline run -- COMMAND`: as it ends, it says what was watched, or why nothing was. An update "
    "is seen by the step() of an optimizer of torch.optim.",
)


@dataclass(frozen=True, slots=True)
class Summary:
    """``what`` is said after the verdict in one or two sentences; ``next`` is empty where nothing was found in steps.
    ``unchecked`` are the checks that did not run, by why.
    """

    verdict: Verdict
    what: str
    next: tuple[str, ...]
    checked: str
    unchecked: list[tuple[list[str], str]]


def summary(report: CheckReport) -> Summary:
    """What the page says of ``report`` at its top. Nothing is concluded here."""
    telling = [report.findings[incident.findings[0]] for incident in report.incidents]
    advice = list(dict.fromkeys(finding.next[0] for finding in telling if finding.next))
    return Summary(
        verdict=report.verdict,
        what=_outcome(report),
        next=tuple(advice[:_MAX_NEXT]) if report.judged.steps is not None or advice else _NEXT_WITHOUT_ROWS,
        checked=_checked(report) if report.judged.num_steps else "",
        unchecked=by_reason((entry.check, entry.why) for entry in report.checks_not_run),
    )


def judges_workers(checks_run: Sequence[str]) -> bool:
    """True if any check that ran judges single workers' losses, norms or directions."""
    return any(facts_of(code).judge_workers for code in checks_run)


def headline(verdicts: Sequence[tuple[str, Verdict]]) -> str:
    """The first sentence of the page for named Runs, the gravest first."""
    if len(verdicts) == 1:
        return verdicts[0][1].line
    groups = {status: [name for name, verdict in verdicts if verdict.status == status] for status in WORDS}
    parts: list[str] = []
    for status, names in groups.items():
        if names:
            word = WORDS[status] if not parts else WORDS[status][0].lower() + WORDS[status][1:]
            parts.append(f"{word}: {listed(names)}" if len(names) <= 4 else f"{word}: {counted(len(names), 'Run')}")
    return "; ".join(parts) + "."


def _outcome(report: CheckReport) -> str:
    if report.incidents:
        likely, title = report.cause(0), report.incidents[0].title
        # of a job that died the verdict says all that there is to say
        is_said = title.rstrip(".").lower() in report.verdict.line.lower()
        return " ".join([*([] if is_said else [title]), *([f"{likely.shortly}."] if likely.is_likely else [])])
    if report.judged.steps is None:
        return "This Run holds no rows, so there is nothing to check or draw."
    if report.verdict.status == "unknown":
        return "The reasons are listed below."
    judged = report.judged.world_size == 1 or judges_workers(report.checks_run)
    return "" if judged else _LIMIT


def _checked(report: CheckReport) -> str:
    if not report.checks_run or report.judged.steps is None:
        return ""
    extent = f"over {steps_words(*report.judged.steps)} on {counted(report.judged.world_size, 'rank')}"
    return f"{counted(len(report.checks_run), 'check')} {extent}: {listed(report.checks_run)}."
