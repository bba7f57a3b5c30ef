"""What all trials share: the job that is run several times, the arms, and the answer with what it excludes.

A trial is a question, arms (ways to run the job) with so many runs each, a rule that is fixed before the first run, and
one of three answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trueline.judge.actions import actions_of
from trueline.schema.finding import Finding, documents_of
from trueline.schema.trial_verbs import VERBS
from trueline.trials.frame.chance import Counts, clean_runs_needed, least_rate, mean_rate
from trueline.trials.frame.engines.engine import Engine, Started
from trueline.trials.frame.engines.local import Local

SCHEMA = 1
"""Of the document that ``TrialAnswer.to_json`` makes; raised when a field changes meaning."""

TAIL_LINES = 3
PLACEHOLDER = "{folder}"
"""In a command: a folder of the run's own, in which the job saves."""
Answer = Literal["confirmed", "excluded", "undecided"]


@dataclass(frozen=True)
class Arm:
    """One way to run the job: how often it was run, and in how many of these runs it showed what is asked for."""

    name: str
    runs: int
    showed: int


@dataclass(frozen=True)
class Rate:
    """The rate at which the job as it is ``showed`` it in so many ``runs``; it does ``at_least`` so often (95 %
    confidence), the ``mean`` of what is left, and ``clean_runs`` without it in a row say that it is gone, with an error
    of 1 %.
    """

    runs: int
    showed: int
    at_least: float
    mean: float
    clean_runs: int


def rate_of(counts: Counts) -> Rate | None:
    """The rate at which the job as it is shows the finding; None before the first that shows it."""
    if not counts.showed:
        return None
    least = least_rate(counts)
    return Rate(counts.runs, counts.showed, least, mean_rate(counts), clean_runs_needed(least, error=0.01))


@dataclass(frozen=True)
class TrialAnswer:
    """The answer to ``question`` with its reasons, ``says``; ``credible`` are candidates that are left where a trial
    searches among some, ``error_asked`` the probability of a wrong answer that its rule allows (None: it has no chance
    in it), ``findings`` what it measured of the job, where that is one, ``table`` what it says row by row: texts are
    shown, by the names of their columns.
    """

    trial: str
    question: str
    answer: Answer
    says: tuple[str, ...]
    arms: tuple[Arm, ...]
    next: tuple[str, ...] = ()
    credible: tuple[str, ...] = ()
    error_asked: float | None = None
    rate: Rate | None = None
    findings: tuple[Finding, ...] = ()
    table: tuple[Mapping[str, Any], ...] = ()

    @property
    def runs(self) -> int:
        """Number of runs of the job, in all arms."""
        return sum(arm.runs for arm in self.arms)

    @property
    def exit_code(self) -> int:
        """0 answered, 3 undecided."""
        return 3 if self.answer == "undecided" else 0

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        verb = VERBS.get(self.trial)
        means = verb.means[self.answer] if verb is not None else " ".join(self.says).rstrip(".")
        return f"{self.answer.capitalize()}: {means}."

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "trial": self.trial,
            "status": self.answer,
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "cause": self.findings[0].code if self.findings and self.answer == "confirmed" else None,
            "actions": [action.to_json() for action in actions_of(self.next)],
            "question": self.question,
            "answer": self.answer,
            "says": list(self.says),
            "arms": [asdict(arm) for arm in self.arms],
            "error_asked": self.error_asked,
            "runs": self.runs,
            **({} if self.rate is None else {"rate": asdict(self.rate)}),
            "credible": list(self.credible),
            "next": list(self.next),
            **({"findings": documents_of(self.findings)} if self.findings else {}),
            **({"table": list(self.table)} if self.table else {}),
        }


class Undecided(Exception):
    """Why a trial can tell nothing, as a sentence, and what to do."""

    def __init__(self, says: str, *then: str) -> None:
        super().__init__(says)
        self.says, self.then = says, then


@dataclass(frozen=True)
class Ended:
    """The end of a run of the command: its exit status (None: it was stopped after ``Job.timeout_s``), and the last
    lines that it printed.
    """

    status: int | None
    tail: str


def how_it_ended(ended: Ended) -> str:
    """Say how a command ended, where that was not well; '' where it was."""
    if ended.status == 0:
        return ""
    last = f" It printed last: {ended.tail}" if ended.tail else ""
    if ended.status is None:
        return f"it was stopped, as it took too long.{last}"
    return f"it ended with status {ended.status}.{last}"


@dataclass(frozen=True)
class Job:
    """A command that ``engine`` runs again and again, each time for at most ``timeout_s``; it reads no input, and what
    it prints is kept for ``Ended`` only.
    """

    words: Sequence[str]
    timeout_s: float
    engine: Engine = field(default_factory=Local, compare=False)
    _live: list[Started] = field(default_factory=list[Started], compare=False, repr=False)

    def with_words(self, words: Sequence[str] | None) -> Job:
        """A copy with another command line; None: this job."""
        return self if words is None else replace(self, words=tuple(words))

    def saving_in(self, folder: str) -> Job:
        """A copy whose command line has ``folder`` in place of ``PLACEHOLDER``."""
        return self.with_words([word.replace(PLACEHOLDER, folder) for word in self.words])

    def run(self, environ: Mapping[str, str], *, printed: Path, folder: Path | None = None) -> Ended:
        """Run it to its end, in ``folder`` (None: here); whatever it started ends with it. Raises ``OSError`` where it
        cannot be started.
        """
        started = self.engine.start(self.words, environ, printed=printed, folder=folder or Path.cwd())
        # so that an interrupted trial ends the runs that other threads wait for
        self._live.append(started)
        try:
            status = started.wait(self.timeout_s)
        finally:
            started.end()
            self._live.remove(started)
        printed_text = printed.read_text(errors="replace") if printed.exists() else ""
        lines = [line for line in printed_text.splitlines() if line.strip()]
        return Ended(status, "\n".join(lines[-TAIL_LINES:]))

    def end(self) -> None:
        """End all runs of it that other threads wait for."""
        # a copy: threads that end take theirs out meanwhile
        for started in list(self._live):
            started.end()
