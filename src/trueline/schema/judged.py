"""What of a Run was judged: the questions that checks answer, why some checks could not, and the verdict in one
sentence, which command line, report and documents have alike.

Whether nothing found means that nothing is wrong follows from here, never from the words of a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Question = Literal[
    "data",
    "repeats",
    "replicas",
    "workers",
    "nonfinite",
    "jumps",
    "streams",
    "configuration",
    "start",
    "updates",
    "weights",
    "loss",
    "mask",
    "order",
    "batch",
    "devices",
    "recorded",
    "rollouts",
    "reference",
    "other",
]
QUESTIONS: dict[Question, str] = {
    "data": "which samples the ranks read",
    "repeats": "whether a rank reads samples again",
    "replicas": "whether gradients are averaged and replicas stay equal",
    "workers": "whether losses and gradients of one rank differ from those of the others",
    "nonfinite": "whether losses and gradients are finite",
    "jumps": "whether loss or gradients jump",
    "streams": "whether random streams are as declared",
    "configuration": "whether ranks have the same settings",
    "start": "whether weights begin as they were meant to",
    "updates": "whether the optimizer updates as it declares",
    "weights": "whether all tokens count alike, and add up to one mean",
    "loss": "whether the loss is given what it is made for",
    "mask": "whether each position predicts the next token, and does not see it",
    "order": "whether the order of tokens reaches the model",
    "batch": "whether what a model returns for a sample depends on it alone",
    "devices": "whether the same work gives the same bits",
    "recorded": "where recorded steps overflow",
    "rollouts": "whether rollout engine and trainer have the same policy",
    "reference": "where it differs from the reference",
    "other": "what checks of other packages ask",
}
"""Each as a question of the page."""
TOPICS: dict[Question, str] = {
    "data": "data sharding",
    "repeats": "repeated samples",
    "replicas": "averaging of gradients, equal replicas",
    "workers": "one rank against the others",
    "nonfinite": "NaN and infinity",
    "jumps": "jumps of loss and gradients",
    "streams": "random streams",
    "configuration": "settings",
    "start": "initial weights",
    "updates": "updates of the optimizer",
    "weights": "weights of tokens",
    "loss": "arguments of the loss",
    "mask": "causal mask and labels",
    "order": "token order",
    "batch": "samples leaking into each other",
    "devices": "work that is done again",
    "recorded": "overflow in recorded steps",
    "rollouts": "rollout engine against trainer",
    "reference": "the reference",
    "other": "checks of other packages",
}
"""Each in words that follow "Not tested:"."""

BETWEEN_RANKS: tuple[Question, ...] = ("data", "replicas", "workers")
"""Answered by comparing ranks with each other."""
_MAIN: tuple[Question, ...] = (*BETWEEN_RANKS, "nonfinite")
"""The questions for every training of several ranks."""
_MAIN_OF_ONE: tuple[Question, ...] = ("nonfinite", "jumps", "updates")
"""The questions for every training of one process."""
FEWEST_STEPS_OF_ONE = 8
"""Of one process: no step has another rank's beside it to be compared with, and most checks take as many."""

Reason = Literal[
    "no-data",
    "too-few-steps",
    "one-worker",
    "undecidable",
    "damaged",
    "failed",
    "by-design",
    "not-recorded",
]
"""Why a check has no answer: its data were not measured; were measured at too few steps; there is no second rank to
compare with; the data do not determine the answer; cannot be read; the check itself failed. Having one worker and the
last two are no shortcoming: such a training cannot have what it looks for, or it needs recorded steps, which the Plan
did not ask for, or optimizer steps, of which the Run has none.
"""
_NO_LACK: tuple[Reason, ...] = ("one-worker", "by-design", "not-recorded")

State = Literal["judged", "partly", "open", "not-applicable"]


@dataclass(frozen=True, slots=True)
class NotRun:
    """A check that has no answer, and why: as a code for programs, as a sentence for people."""

    check: str
    why: str
    reason: Reason = "no-data"

    @property
    def lacks(self) -> bool:
        """Whether the check could have had an answer in such a training."""
        return self.reason not in _NO_LACK

    def to_json(self) -> dict[str, str]:
        return {"check": self.check, "why": self.why, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question, with the checks that answered it and those that could not."""

    question: Question
    checks_run: tuple[str, ...] = ()
    checks_not_run: tuple[NotRun, ...] = ()

    @property
    def state(self) -> State:
        """Judged where at least half of its checks ran, without those that do not apply; partly where fewer did."""
        lacking = sum(entry.lacks for entry in self.checks_not_run)
        if self.checks_run:
            return "judged" if len(self.checks_run) >= lacking else "partly"
        return "open" if lacking else "not-applicable"

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "state": self.state,
            "checks_run": list(self.checks_run),
            "checks_not_run": [entry.to_json() for entry in self.checks_not_run],
        }


@dataclass(frozen=True, slots=True)
class Judged:
    """What was judged: ``questions`` with their checks, the global ``ranks`` that were compared with each other, the
    size of the job, and the first and last step with a row (None: there is none). ``unclosed`` are the ranks that did
    not close the Run: they still run, or were ``killed``, all of them.
    """

    questions: tuple[AskedQuestion, ...] = ()
    ranks: tuple[int, ...] = ()
    world_size: int = 1
    num_steps: int = 0
    steps: tuple[int, int] | None = None
    unclosed: tuple[int, ...] = ()
    killed: bool = False

    def of(self, *states: State, among: Iterable[Question] = tuple(QUESTIONS)) -> tuple[AskedQuestion, ...]:
        """The questions ``among`` those asked that are in one of ``states``."""
        questions = set(among)
        return tuple(entry for entry in self.questions if entry.state in states and entry.question in questions)

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that could not be loaded, or failed: what they look for nobody looked for."""
        return tuple(
            entry.check for question in self.questions for entry in question.checks_not_run if entry.reason == "failed"
        )

    @property
    def main(self) -> tuple[Question, ...]:
        """The questions for every training of so many ranks."""
        return _MAIN_OF_ONE if self.world_size == 1 else _MAIN

    @property
    def enough(self) -> bool:
        """Whether "nothing found" means "no fault found".

        That takes checks of which none failed, and ranks that were compared with each other, and at most one of the
        four main questions that apply left open. Of one process there is nothing to compare: then it takes
        ``FEWEST_STEPS_OF_ONE`` steps, and two of the three questions that apply to it. Otherwise a comparison with a
        reference is enough, or one of its rollouts with training; for a Run of recorded steps alone, one with a
        reference.
        """
        if self.failed or self.of("open", among=("reference",)):
            return False
        if (self.world_size == 1 or not self.num_steps) and self.of("judged", among=("rollouts",)):
            return True
        if (self.world_size == 1 or not self.num_steps) and self.of("judged", among=("reference",)):
            return True
        if not self.num_steps:
            return False
        closed_questions = self.of("judged", "partly", "not-applicable", among=self.main)
        is_looked_at = (
            self.num_steps >= FEWEST_STEPS_OF_ONE
            if self.world_size == 1
            else bool(self.of("judged", "partly", among=BETWEEN_RANKS))
        )
        return is_looked_at and len(self.main) - len(closed_questions) <= 1

    def to_json(self) -> dict[str, Any]:
        return {
            "enough": self.enough,
            "ranks": list(self.ranks),
            "world_size": self.world_size,
            "num_steps": self.num_steps,
            "step_first": None if self.steps is None else self.steps[0],
            "step_last": None if self.steps is None else self.steps[1],
            "unclosed": list(self.unclosed),
            "questions": [question.to_json() for question in self.questions],
        }


def asked_of(
    checks_run: Sequence[str], checks_not_run: Sequence[NotRun], question_of: Mapping[str, Question]
) -> tuple[AskedQuestion, ...]:
    """The questions that any of the checks belongs to, in the order of ``QUESTIONS``."""
    entries = (
        AskedQuestion(
            question,
            tuple(code for code in checks_run if question_of[code] == question),
            tuple(entry for entry in checks_not_run if question_of[entry.check] == question),
        )
        for question in QUESTIONS
    )
    return tuple(entry for entry in entries if entry.checks_run or entry.checks_not_run)


def judged_together(groups: Sequence[Judged]) -> Judged:
    """What was judged of all groups of ranks of one job; a check counts as run where it ran in each group to which it
    applies.
    """
    ran = [{code for question in group.questions for code in question.checks_run} for group in groups]
    question_of: dict[str, Question] = {
        code: question.question
        for group in groups
        for question in group.questions
        for code in (*question.checks_run, *(entry.check for entry in question.checks_not_run))
    }
    not_run = [entry for group in groups for question in group.questions for entry in question.checks_not_run]
    lacks = {entry.check for entry in not_run if entry.lacks}
    everywhere = sorted(set[str]().union(*ran) - lacks)
    lacking = {
        entry.check: entry
        for entry in not_run
        if entry.check not in everywhere and (entry.lacks or entry.check not in lacks)
    }
    spans = [group.steps for group in groups if group.steps is not None]
    return Judged(
        questions=asked_of(everywhere, list(lacking.values()), question_of),
        ranks=tuple(sorted(rank for group in groups for rank in group.ranks)),
        world_size=groups[0].world_size,
        num_steps=min(group.num_steps for group in groups),
        steps=(min(first for first, _ in spans), max(last for _, last in spans)) if spans else None,
        unclosed=tuple(sorted(rank for group in groups for rank in group.unclosed)),
        killed=any(group.killed for group in groups),
    )


Status = Literal["out", "suspect", "clear", "unknown"]
WORDS: dict[Status, str] = {
    "out": "Fault found",
    "suspect": "Probable fault",
    "clear": "No fault found",
    "unknown": "Cannot tell",
}
"""The gravest first."""
FOR_PROGRAMS: dict[Status, str] = {"out": "fault", "suspect": "fault", "clear": "fine", "unknown": "cannot-tell"}
"""The status in documents."""
COMPARED: dict[int, str] = {0: "same", 1: "different", 3: "cannot-tell"}
"""The status of two jobs, by exit code."""
NOT_JUDGED = "not-judged"
"""The status of a document that says what is, and not whether it is well."""
EXIT_CODES: dict[Status, int] = {"out": 1, "suspect": 1, "clear": 0, "unknown": 3}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``where`` is which ranks since which step, "" where nothing was found; ``line`` is the whole sentence. Without a
    fault there may be something to ``confirm``. ``brief_rest`` is the rest where all of that stands below.
    """

    status: Status
    where: str
    rest: str
    confirm: bool = False
    brief_rest: str = ""

    @property
    def word(self) -> str:
        """The status as a reader sees it."""
        return WORDS[self.status]

    @property
    def for_programs(self) -> str:
        """The status in documents."""
        return "confirm" if self.confirm else FOR_PROGRAMS[self.status]

    @property
    def line(self) -> str:
        """``Probable fault: rank 2, since step 32; 3 findings.``"""
        return f"{self.word}{': ' if self.where else ''}{self.where}{self.rest}."

    @property
    def brief(self) -> str:
        """The sentence with the heads alone of what is to confirm, above the list that has it whole."""
        return f"{self.word}{': ' if self.where else ''}{self.where}{self.brief_rest or self.rest}."
