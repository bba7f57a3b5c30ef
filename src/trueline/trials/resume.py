"""Is the job after a restart the one that was never stopped? The job uninterrupted, and stopped and started again.

The rule, fixed before the first run. All runs begin with the same seeds. The first runs through; the second is ended
after as many updates as the restart is at, and has to repeat the bits of the first up to there, else nothing can be
said by bits. The third is ended one update later, so that what the script saves after the update is saved, and is
started again with the words that make it resume. It goes on at the update whose weights it has, or, where it has those
of none, at the one whose samples it reads. From there on each kind of value is held to that of the first run, bit by
bit.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, named_some, ranks_text
from trueline.store.reader import Run
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import PLACEHOLDER, Answer, Job, TrialAnswer, Undecided
from trueline.trials.frame.watched_job import EVERY_STEP, RUN, run_watched

UNINTERRUPTED, UP_TO, RESTARTED = "uninterrupted", "up to the restart", "restarted"
QUESTION = "Is the job after a restart the one that was never stopped?"
AGAIN = "again"
"""The Run of the start that resumes, beside that of the first."""
STATES, STREAMS, RATE = "optimizer states", "random streams", "learning rate"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "weights": ("param_digests",),
    "buffers": ("buffer_digests",),
    RATE: ("lr",),
    "loss scale": ("loss_scaler",),
    "samples": ("sample_digests",),
    STREAMS: ("rng_python", "rng_numpy", "rng_torch", "rng_device"),
    "loss": ("loss", "part_losses"),
    "gradients": ("grad_norm", "param_grad_norms"),
}
"""What is compared, in the order in which it is the cause of what follows."""
PLACE = "place of the schedule"
"""Beside these: where a schedule is says nothing by itself, as one may be made anew for the rest."""
CAUSES = {
    "weights": "weights-not-restored",
    "buffers": "buffers-not-restored",
    STATES: "optimizer-state-lost",
    RATE: "schedule-not-restored",
    "loss scale": "loss-scale-not-restored",
    "samples": "data-restarted",
    STREAMS: "random-state-lost",
}
"""What a kind that differs at the first update after the restart says. Losses and gradients follow from the others."""
ADVICE = {
    "weights": "Load the model's state in the start that resumes, after the model is built and before it is wrapped.",
    "buffers": "Save and load the whole state_dict of the model, its buffers too.",
    STATES: "Save and load optimizer.state_dict(), by the same order of parameters, before the first update.",
    RATE: "Save and load the scheduler's state_dict(), and count updates from the checkpoint on.",
    "loss scale": "Save and load the GradScaler's state_dict().",
    "samples": "Save where the data was, and skip to it; call set_epoch with the epoch of the checkpoint.",
    STREAMS: "Save and set the states of each rank: of torch, of its device, of NumPy and of Python.",
}


@dataclass(frozen=True)
class RestartedJob:
    """Runs ``job`` for ``steps`` updates, or stopped after ``at`` of them and started again with ``resume_with``."""

    job: Job
    at: int
    steps: int
    resume_with: tuple[str, ...]
    seed: int

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        (run_folder / "files").mkdir()
        if way.arm == RESTARTED:
            why = self._start(run_folder, RUN, self.at + 1)
            why = why or self._start(run_folder, AGAIN, self.steps - self.at, *self.resume_with)
        else:
            why = self._start(run_folder, RUN, self.steps if way.arm == UNINTERRUPTED else self.at)
        return Outcome(None, why) if why else Outcome(False, codes=(str(run_folder.absolute()),))

    def _start(self, run_folder: Path, name: str, updates: int, *words: str) -> str:
        """Why a start told nothing, '' where it left a Run of this name."""
        files = str((run_folder / "files").absolute())
        job = self.job.with_words((*self.job.words, *words)).saving_in(files)
        changes = {"updates": updates, "seed": self.seed}
        _, why = run_watched(job, run_folder / name, plan=EVERY_STEP, changes=changes)
        return why and f"{'the start that resumes' if name == AGAIN else 'the job'}: {why}"


@dataclass(frozen=True)
class Side:
    """The steps of one start, in their order: the first is number 0."""

    run: Run

    @cached_property
    def num_steps(self) -> int:
        """How many there are."""
        return len(self.run.steps)

    @cached_property
    def values(self) -> Mapping[str, Mapping[int, Mapping[int, tuple[Any, ...]]]]:
        """Of each kind, by number of the step and by rank, what was recorded; without ranks that recorded nothing."""
        number_of = {int(step): number for number, step in enumerate(self.run.steps)}
        numbers = [number_of[int(step)] for step in self.run.column("step").to_pylist()]
        ranks = [int(rank) for rank in self.run.column("rank").to_pylist()]
        values: dict[str, dict[int, dict[int, tuple[Any, ...]]]] = {}
        for kind, names in {**COLUMNS, PLACE: ("schedule_epochs",)}.items():
            values[kind] = {number: {} for number in range(self.num_steps)}
            rows = zip(*(self.run.column(name).to_pylist() for name in names), strict=True)
            for number, rank, row in zip(numbers, ranks, rows, strict=True):
                if any(value not in (None, []) for value in row):
                    values[kind][number][rank] = row
        return values

    def recorded(self, kind: str, number: int) -> Mapping[int, tuple[Any, ...]]:
        """By rank, of the step of this number."""
        return self.values[kind].get(number, {})

    def states(self, column: str) -> dict[int, Mapping[str, Mapping[str, str]]]:
        """By rank, digests of the optimizer's states by their name, then by parameter."""
        return {rank: json.loads(text) for (_, rank), text in self.run.texts(column).items()}


@dataclass
class ResumeTrial:
    """Runs the three arms of ``job`` through ``runs``, and holds them to each other."""

    runs: Runs
    job: RestartedJob

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            whole, repeated, resumed = (self._run(arm) for arm in (UNINTERRUPTED, UP_TO, RESTARTED))
            self._require_comparable(whole, repeated, resumed)
            _require_repeated(whole, repeated)
            return self._judged(whole, repeated, resumed)
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)

    def _run(self, arm: str) -> Side:
        (folder,) = self.runs.entry_with_outcome(Way(arm))["codes"]
        try:
            return Side(Run(Path(folder) / (AGAIN if arm == RESTARTED else RUN)))
        except RunError as error:
            raise Undecided(f"What a run left cannot be read: {error}") from None

    def _require_comparable(self, whole: Side, repeated: Side, resumed: Side) -> None:
        """Raises ``Undecided`` where a start has too few steps, or other ranks: nothing would be looked at."""
        at = self.job.at
        if whole.num_steps <= at or repeated.num_steps < at:
            raise Undecided(
                f"The job made {counted(min(whole.num_steps, repeated.num_steps), 'update')}, and is to be stopped "
                f"after update {at}.",
                "Give --at fewer updates than the job makes.",
            )
        if not resumed.num_steps:
            raise Undecided("The start that resumes made no update.", "Let the job make more updates than --at.")
        if resumed.run.ranks != whole.run.ranks:
            raise Undecided(
                f"The start that resumes has {ranks_text(resumed.run.ranks)}, and the job "
                f"{ranks_text(whole.run.ranks)}."
            )

    def _judged(self, whole: Side, repeated: Side, resumed: Side) -> TrialAnswer:
        begins = _number_of_first(resumed, whole, self.job.at)
        states = _other_states(repeated, resumed) if begins == self.job.at else None
        seen = [kind for kind in COLUMNS if resumed.recorded(kind, 0) and whole.recorded(kind, begins)]
        differing = {kind for kind in seen if _differs(whole, resumed, kind, begins, 0)}
        if not _are_drawn_from(whole, resumed, begins):
            differing.discard(STREAMS)
        other_rate = _number_of_other_rate(whole, resumed, begins, is_alone=not differing and not states)
        if other_rate is not None:
            differing.add(RATE)
        causes = [kind for kind in CAUSES if kind in differing or (kind == STATES and states)]
        equal = [kind for kind in CAUSES if kind not in causes and (kind in seen or (kind == STATES and states == ""))]
        unlooked = self._unlooked(begins, [*seen, *([] if states is None else [STATES])])
        if causes:
            says = [_sentence(kind, whole, resumed, begins, states or "", other_rate or 0) for kind in causes]
            findings = [_finding(kind, line, begins) for kind, line in zip(causes, says, strict=True)]
            says += [f"The same as in the run that was not stopped: {listed(equal)}."] if equal else []
            credible = [CAUSES[kind] for kind in causes]
            return self._answered("confirmed", says + unlooked, [ADVICE[kind] for kind in causes], credible, findings)
        later = _first_difference(whole, resumed, begins)
        if later is None:
            num_steps = min(whole.num_steps - begins, resumed.num_steps)
            line = (
                f"After a restart at update {begins} the job is the same, bit for bit, in "
                f"{counted(num_steps, 'step')}: {listed([*seen, *([STATES] if states == '' else [])])}."
            )
            return self._answered("excluded", [line, *unlooked])
        # what came after the restart was run once only: does it repeat itself?
        _require_repeated(whole, self._run(UNINTERRUPTED))
        kind, number = later
        line = (
            f"The job goes on at update {begins} with the same values, and has other {kind} from step "
            f"{begins + number} on: something that is not looked at is not restored."
        )
        return self._answered("confirmed", [line, *unlooked], credible=("something-else",))

    def _unlooked(self, begins: int, seen: Sequence[str]) -> list[str]:
        """What was not compared, in sentences."""
        says: list[str] = []
        if begins != self.job.at:
            says.append(
                f"It went on at update {begins}, and was stopped after update {self.job.at}: its states of the "
                f"optimizer were not compared. --at {begins} compares them, if the script saves then."
            )
        kinds = [*COLUMNS, *([STATES] if begins == self.job.at else [])]
        missing = [kind for kind in kinds if kind not in seen]
        return [*says, f"Not seen in this job: {listed(missing)}."] if missing else says

    def _answered(
        self,
        answer: Answer,
        says: Sequence[str],
        then: Sequence[str] = (),
        credible: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> TrialAnswer:
        arms = self.runs.arms_by(lambda name, _: int(name == RESTARTED and bool(credible)))
        return self.runs.end(
            TrialAnswer(
                *("resume", QUESTION, answer, tuple(says), arms, tuple(then), tuple(credible)),
                findings=tuple(findings),
            )
        )


def _require_repeated(whole: Side, repeated: Side) -> None:
    """Raises ``Undecided`` where two runs with the same seeds leave other bits."""
    if (difference := _first_difference(whole, repeated, 0)) is not None:
        kind, number = difference
        raise Undecided(
            f"The job does not repeat itself: two runs with the same seeds have other {kind} from step {number} on, "
            "so that bits say nothing of a restart.",
            "Find the operation that does not repeat itself: trueline trial repeat.",
        )


def _other_states(repeated: Side, resumed: Side) -> str | None:
    """How the optimizer's states differ, in words; '' where they do not, None where none were seen."""
    states_left = {rank: states for rank, states in sorted(repeated.states("closing_states").items()) if states}
    states_taken = resumed.states("opening_states")
    for rank, before in states_left.items():
        after = states_taken.get(rank, {})
        params = sorted({param for by_param in before.values() for param in by_param})
        differing = [
            param
            for param in params
            if any(by_param.get(param) != after.get(name, {}).get(param) for name, by_param in before.items())
        ]
        if differing:
            has_any = any(param in by_param for by_param in after.values() for param in differing)
            return f"on rank {rank} the optimizer has {'others' if has_any else 'none'} of {named_some(differing)}"
    return "" if states_left else None


def _sentence(kind: str, whole: Side, resumed: Side, begins: int, states: str, other_rate: int) -> str:
    if kind == STATES:
        return f"The optimizer's states are not those that were left: {states}."
    if kind == RATE:
        (rank, *_) = _differs(whole, resumed, RATE, begins, other_rate)
        rates = (resumed.recorded(RATE, other_rate)[rank][0][0], whole.recorded(RATE, begins + other_rate)[rank][0][0])
        where = f"at update {begins + other_rate}" + ("" if other_rate else ", the first after the restart")
        return f"The learning rate is {rates[0]:g} {where}, and {rates[1]:g} in the run that was not stopped."
    ranks = _differs(whole, resumed, kind, begins, 0)
    where = f"at update {begins}, the first after the restart, on {ranks_text(ranks, all_ranks=list(whole.run.ranks))}"
    is_of_beginning = begins > 0 and not _differs(whole, resumed, kind, 0, 0)
    if kind == "samples" and is_of_beginning:
        return f"The data began again: {where} samples are those of update 0."
    if kind == "weights" and is_of_beginning:
        return "The start that resumes begins with the weights of update 0: they were not loaded."
    if kind == "weights":
        return f"Weights are those of no update of the run that was not stopped: {where}."
    verb = "is" if kind == "loss scale" else "are"
    return f"The {kind} {verb} not as in the run that was not stopped: {where}."


def _finding(kind: str, claim: str, begins: int) -> Finding:
    return Finding(
        code="restart-differs",
        severity="error" if kind in ("weights", STATES) else "warning",
        claim=claim,
        step_first=begins,
        step_last=begins,
        false_alarm_rate=0.0,
        evidence={"kind": kind, "cause": CAUSES[kind]},
        next=(ADVICE[kind],),
    )


def _differs(whole: Side, side: Side, kind: str, begins: int, number: int) -> tuple[int, ...]:
    """Ranks whose value of ``kind`` at step ``number`` of ``side`` is not that of ``whole``, whose step ``begins`` is
    the first of ``side``.
    """
    expected, values = whole.recorded(kind, begins + number), side.recorded(kind, number)
    return tuple(rank for rank, row in sorted(values.items()) if rank in expected and _are_unlike(row, expected[rank]))


def _are_unlike(row: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """True if a value that both have is not equal: some are recorded at the first steps of a start alone."""
    pairs = zip(row, expected, strict=True)
    return any(value != other for value, other in pairs if value is not None and other is not None)


def _are_drawn_from(whole: Side, resumed: Side, begins: int) -> bool:
    """True if a random stream that differs after the restart is drawn from in a step of the run that was not stopped:
    of others the state says nothing.
    """
    expected, values = whole.recorded(STREAMS, begins), resumed.recorded(STREAMS, 0)
    by_step = [whole.recorded(STREAMS, number) for number in range(max(begins - 1, 0), whole.num_steps)]
    return any(
        len({states[rank][stream] for states in by_step if rank in states}) > 1
        for rank, states_taken in values.items()
        for stream, state in enumerate(states_taken)
        if rank in expected and state != expected[rank][stream]
    )


def _number_of_other_rate(whole: Side, resumed: Side, begins: int, *, is_alone: bool) -> int | None:
    """The first step of ``resumed`` with another learning rate; None without. ``is_alone``: nothing else differs.

    A rate that was right at first is the one that the optimizer keeps. One that comes to differ may follow a loss that
    does, but where the schedule is elsewhere as well.
    """
    numbers = range(min(whole.num_steps - begins, resumed.num_steps))
    other = next((number for number in numbers if _differs(whole, resumed, RATE, begins, number)), None)
    if not other or is_alone or any(_differs(whole, resumed, PLACE, begins, number) for number in range(other + 1)):
        return other
    return None


def _first_difference(whole: Side, side: Side, begins: int) -> tuple[str, int] | None:
    for number in range(min(whole.num_steps - begins, side.num_steps)):
        for kind in COLUMNS:
            # streams that are drawn from show in what is drawn
            if kind != STREAMS and _differs(whole, side, kind, begins, number):
                return kind, number
    return None


def _number_of_first(resumed: Side, whole: Side, at: int) -> int:
    """The update with which a start goes on: the latest up to ``at`` + 1 whose weights it has, else whose samples it
    reads, else ``at``.
    """
    for kind in ("weights", "samples"):
        for number in range(min(at + 1, whole.num_steps - 1), 0, -1):
            if resumed.recorded(kind, 0) and not _differs(whole, resumed, kind, number, 0):
                return number
    return at


def prepare(asked: Asked, *, resume_with: str = "", at: int = 10) -> Prepared:
    """Is the job after a restart the one that was never stopped? Raises ``InputError``."""
    words = tuple(shlex.split(resume_with))
    steps = at + asked.num_steps
    job = RestartedJob(asked.plain_job, at, steps, words, asked.seed)
    runs = asked.runs_of(job, asked.max_runs, steps=steps, at=at, resume_with=list(words))
    runs.keeps_all = True
    command = " ".join(asked.command)
    has_folder = PLACEHOLDER in f"{command} {resume_with}"
    plan = [
        f"Run through: {command}, {counted(steps, 'update')}.",
        f"Stopped after update {at + 1}, and started again: {command} {' '.join(words)}".rstrip(),
        f"{PLACEHOLDER} is a folder of the run's own."
        if has_folder
        else f"All runs save where the script saves; {PLACEHOLDER} in the command is a folder of the run's own.",
    ]
    return asked.prepared(ResumeTrial(runs, job), plan, "3")
