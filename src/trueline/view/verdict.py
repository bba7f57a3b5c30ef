"""The state of a Run in words: what is out of step, since when, on which ranks, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trueline.schema.finding import Finding
from trueline.view.wording import by_reason, counted, listed, ranks_words, steps_words

Status = Literal["out", "suspect", "clear", "unknown"]
WORDS: dict[Status, str] = {
    "out": "Out of step",
    "suspect": "Probably out of step",
    "clear": "No fault found",
    "unknown": "Cannot tell",
}
_JUDGES_WORKERS = ("worker-loss-outlier", "worker-grad-norm-outlier", "worker-direction-outlier", "worker-scale")
"""Checks that judge whether one worker's loss, norm or direction is unusual; without them that is only drawn."""
_MAX_NEXT = 3
_LIMIT = " None of them judges whether one worker’s loss, gradient norm or direction is unusual: look at the charts."


@dataclass(frozen=True, slots=True)
class Verdict:
    """``what`` is one or two sentences; ``since``, ``ranks`` and ``next`` are empty where nothing was found.

    ``unchecked`` are (check, why it did not run).
    """

    status: Status
    what: str
    since: str
    ranks: str
    next: tuple[str, ...]
    checked: str
    unchecked: tuple[tuple[str, str], ...]

    @property
    def word(self) -> str:
        """The status as a reader sees it."""
        return WORDS[self.status]

    @property
    def unchecked_by_reason(self) -> list[tuple[list[str], str]]:
        """``unchecked`` with the checks that did not run for the same reason together."""
        return by_reason(self.unchecked)

    @property
    def line(self) -> str:
        """The status with who and since when, as in ``Out of step: rank 0, since step 10.``, in one sentence."""
        tail = ", ".join(part for part in (self.ranks, f"since {self.since}" if self.since else "") if part)
        return f"{self.word}: {tail}." if tail else f"{self.word}."


def verdict(
    findings: Sequence[Finding],
    *,
    checks_run: Sequence[str],
    checks_not_run: Sequence[tuple[str, str]],
    ranks: Sequence[int],
    num_steps: int,
    step_range: tuple[int, int] | None,
) -> Verdict:
    """What the findings of one Run (heaviest first) say together, and what nobody looked at.

    ``checks_not_run`` are (code, why). Nothing is concluded here that no Finding claims.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    grave = errors or [finding for finding in findings if finding.severity == "warning"]
    status: Status = "out" if errors else "suspect" if grave else "clear"
    if not grave and (num_steps == 0 or not checks_run):
        status = "unknown"
    first_steps = [finding.step_first for finding in grave if finding.step_first is not None]
    named = sorted({rank for finding in grave for rank in finding.ranks})
    advice = list(dict.fromkeys(finding.next[0] for finding in grave if finding.next))
    return Verdict(
        status=status,
        what=_what(status, grave, num_steps=num_steps, num_ranks=len(ranks), judged=judges_workers(checks_run)),
        since=steps_words(min(first_steps), None) if first_steps else "",
        ranks=ranks_words(named, ranks),
        next=tuple(advice[:_MAX_NEXT]),
        checked=_checked(checks_run, len(ranks), step_range) if num_steps else "",
        unchecked=tuple(checks_not_run),
    )


def judges_workers(checks_run: Sequence[str]) -> bool:
    """Whether any check that ran judges single workers' losses, norms or directions."""
    return bool(set(_JUDGES_WORKERS) & set(checks_run))


def headline(verdicts: Sequence[tuple[str, Verdict]]) -> str:
    """The first sentence of the page for named Runs, worst news first."""
    if len(verdicts) == 1:
        return verdicts[0][1].line
    groups = {status: [name for name, one in verdicts if one.status == status] for status in WORDS}
    parts: list[str] = []
    for status, names in groups.items():
        if names:
            word = WORDS[status] if not parts else WORDS[status][0].lower() + WORDS[status][1:]
            parts.append(f"{word}: {listed(names)}" if len(names) <= 4 else f"{word}: {counted(len(names), 'Run')}")
    return "; ".join(parts) + "."


def _what(status: Status, grave: Sequence[Finding], *, num_steps: int, num_ranks: int, judged: bool) -> str:
    if grave:
        others = len(grave) - 1
        more = f" {counted(others, 'more finding')} below." if others else ""
        return f"{grave[0].claim}{more}"
    if num_steps == 0:
        return "This Run holds no rows: no step was recorded, so there is nothing to check or draw."
    if status == "unknown":
        return "No check had the data that it needs; the reasons are listed below."
    if num_ranks == 1:
        return "The checks that ran found nothing wrong. There is one worker, so there were no two to compare."
    return f"The checks that ran found no worker out of step.{'' if judged else _LIMIT}"


def _checked(checks_run: Sequence[str], num_ranks: int, step_range: tuple[int, int] | None) -> str:
    over = f" over {steps_words(*step_range)}" if step_range else ""
    if not checks_run:
        return ""
    return f"{counted(len(checks_run), 'check')}{over} on {counted(num_ranks, 'rank')}: {listed(sorted(checks_run))}."
