"""What is known of a job while it runs, and the role of what takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import ranks_text

SCHEMA = 1
"""Of the documents that ``to_json`` makes; raised when a field changes meaning."""


@dataclass(frozen=True)
class Numbers:
    """The series of one step, by name; what was not measured is left out. See ``trueline.sinks.series``."""

    step: int
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "kind": "numbers", "step": self.step, "values": dict(self.values)}


@dataclass(frozen=True, slots=True)
class FindingVerdict:
    """A finding of the Run at the path ``run``, for who acts on it while the job runs.

    ``last_clean_step`` is the last step before all evidence of any error or warning that the Run had when it was
    judged: no check found something there. It is None where the evidence begins with the first step, or has none.
    """

    run: str
    finding: Finding
    last_clean_step: int | None = None

    @property
    def code(self) -> str:
        return self.finding.code

    @property
    def severity(self) -> Severity:
        return self.finding.severity

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that it names; none where it is about the whole job."""
        return self.finding.ranks

    @property
    def rank(self) -> int | None:
        """The rank, if it names one alone."""
        return self.finding.where.rank

    @property
    def node(self) -> str | None:
        """The host of its ranks, if they have one in common."""
        return self.finding.where.host

    @property
    def device(self) -> str | None:
        """The device of ``rank``."""
        return self.finding.where.device

    @property
    def step(self) -> int | None:
        """The step at which its evidence starts."""
        return self.finding.step_first

    @property
    def false_alarm_bound(self) -> float | None:
        """The probability that a healthy job shows this is at most so much: 0.0 of a contradiction, None if unknown."""
        return self.finding.false_alarm_rate

    def __str__(self) -> str:
        return headline(self.finding)

    def to_json(self) -> dict[str, Any]:
        """The finding as one line of ``jsonl``, and what else this says."""
        return {**finding_document(self.finding), "run": self.run, "last_clean_step": self.last_clean_step}


Event = Finding | Numbers
"""What a callback is given."""

Callback = Callable[[Event], object]

VerdictCallback = Callable[[FindingVerdict], object]
"""What ``trueline.on_finding`` calls."""


class LiveSink(Protocol):
    """Where findings and numbers go while a job runs. It is called in a thread of its own, outside of the training
    process; it may be slow, hang or raise.
    """

    def numbers(self, rows: Sequence[Numbers]) -> None:
        """Take the series of further steps, in order."""
        ...

    def finding(self, finding: Finding) -> None:
        """Take a finding that was not there before."""
        ...

    def close(self) -> None:
        """Make everything taken so far readable. Called once."""
        ...


def finding_document(finding: Finding) -> dict[str, Any]:
    """A finding as one line of ``jsonl`` and as what a webhook is sent."""
    return {"schema": SCHEMA, "kind": "finding", **finding.to_json()}


def headline(finding: Finding) -> str:
    """``error replica-drift, rank 2, since step 50: claim``."""
    return f"{', '.join((f'{finding.severity} {finding.code}', *whose_and_since(finding)))}: {finding.claim}"


def whose_and_since(finding: Finding) -> list[str]:
    """``rank 2`` and ``since step 50``, as far as the finding names them."""
    onset = "" if finding.step_first is None else f"since step {finding.step_first}"
    return [text for text in (ranks_text(finding.ranks), onset) if text]


def with_advice(line: str, finding: Finding) -> str:
    """``line``, and below it what to do about the finding."""
    return "\n".join((line, *finding.next))
