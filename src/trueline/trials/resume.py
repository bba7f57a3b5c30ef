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
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trueline.capture.child_env import CHANGES, environment
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, named_some, ranks_text
from trueline.store.reader import Run
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Answer, Arm, Job, TrialAnswer, Undecided, how_it_ended

UNINTERRUPTED, UP_TO, RESTARTED = "uninterrupted", "up to the restart", "restarted"
QUESTION = "Is the job after a restart the one that was never stopped?"
PLAN = {"preset": "workers", "every": 1, "params_every": 1, "budget": 1.0}
"""Everything at every step: runs are short, and are compared and not timed."""
PLACEHOLDER = "{folder}"
"""In the command: a folder of the run's own, the same for both starts of one."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "weights": ("param_digests",),
    "buffers": ("buffer_digests",),
    "learning rate": ("lr",),
    "loss scale": ("loss_scaler",),
    "samples": ("sample_digests",),
    "random streams": ("rng_python", "rng_numpy", "rng_torch", "rng_device"),
    "loss": ("loss", "part_losses"),
    "gradients": ("grad_norm", "param_grad_norms"),
}
"""What is compared, in the order in which it is the cause of what follows."""
STATES, STREAMS = "optimizer states", "random streams"
CAUSES = {
    "weights": "weights-not-restored",
    "buffers": "buffers-not-restored",
    STATES: "optimizer-state-lost",
    "learning rate": "schedule-not-restored",
    "loss scale": "loss-scale-not-restored",
    "samples": "data-restarted",
    "random streams": "random-state-lost",
}
"""What a kind that differs at the first update after the restart says. Losses and gradients follow from the others."""
ADVICE = {
    "weights": "Load the model's state in the start that resumes, after the model is built and before it is wrapped.",
    "buffers": "Save and load the whole state_dict of the model, its buffers too.",
    STATES: "Save and load optimizer.state_dict(), by the same order of parameters, before the first update.",
    "learning rate": "Save and load the scheduler's state_dict(), and count updates from the checkpoint on.",
    "loss scale": "Save and load the GradScaler's state_dict().",
    "samples": "Save where the data was, and skip to it; call set_epoch with the epoch of the checkpoint.",
    "random streams": "Save and set the states of each rank: of torch, of its device, of NumPy and of Python.",
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
            why = self._start(run_folder, "run", self.at + 1)
            why = why or self._start(run_folder, "again", self.steps - self.at, *self.resume_with)
        else:
            why = self._start(run_folder, "run", self.steps if way.arm == UNINTERRUPTED else self.at)
        return Outcome(None, why) if why else Outcome(False, codes=(str(run_folder.absolute()),))

    def _start(self, run_folder: Path, name: str, updates: int, *words: str) -> str:
        """Why a start told nothing, '' where it left a Run of this name."""
        out = (run_folder / name).absolute()
        files = str((run_folder / "files").absolute())
        command = [word.replace(PLACEHOLDER, files) for word in (*self.job.words, *words)]
        environ = environment(out=str(out), plan=dict(PLAN), overwrite=True, base={**os.environ})
        environ[CHANGES] = json.dumps({"updates": updates, "seed": self.seed})
        ended = self.job.with_words(command).run(environ, printed=run_folder / f"printed-{name}.txt")
        why = how_it_ended(ended)
        if why or not out.exists():
            which = "the start that resumes" if name == "again" else "the job"
            return f"{which}: {why or 'nothing of it was watched: no training step was seen'}"
        return ""


@dataclass(frozen=True)
class Side:
    """The steps of one start, in their order."""

    run: Run

    @cached_property
    def steps(self) -> list[int]:
        """Numbers of its steps."""
        return [int(step) for step in self.run.steps]

    @cached_property
    def values(self) -> Mapping[str, Mapping[tuple[int, int], tuple[Any, ...]]]:
        """Of each kind, by (place of the step, rank), what was recorded."""
        place = {step: number for number, step in enumerate(self.steps)}
        at = zip(self.run.column("step").to_pylist(), self.run.column("rank").to_pylist(), strict=True)
        keys = [(place[int(step)], int(rank)) for step, rank in at]
        return {
            kind: dict(zip(keys, zip(*(self.run.column(name).to_pylist() for name in names), strict=True), strict=True))
            for kind, names in COLUMNS.items()
        }

    def of(self, kind: str, place: int) -> dict[int, tuple[Any, ...]]:
        """By rank, of the step at this place; without ranks that recorded nothing."""
        return {
            rank: value
            for (number, rank), value in self.values[kind].items()
            if number == place and any(entry not in (None, []) for entry in value)
        }

    def states(self, column: str) -> dict[int, Mapping[str, Mapping[str, str]]]:
        """By rank, digests of the optimizer's states by their name, then by parameter."""
        return {rank: json.loads(text) for (_, rank), text in self.run.texts(column).items()}


@dataclass
class ResumeTrial:
    """Runs the three arms of ``job`` through ``runs``, and holds them to each other."""

    runs: Runs
    job: RestartedJob
    _sides: dict[str, Side] = field(default_factory=dict[str, Side])

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            for arm in (UNINTERRUPTED, UP_TO, RESTARTED):
                self._run(arm)
            return self._judged()
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)

    def _run(self, arm: str) -> None:
        while self.runs.outcome(Way(arm)) is None:
            continue
        entry = next(entry for entry in reversed(self.runs.log) if entry["arm"] == arm and entry["showed"] is not None)
        (folder,) = entry["codes"]
        try:
            self._sides[arm] = Side(Run(Path(folder) / ("again" if arm == RESTARTED else "run")))
        except RunError as error:
            raise Undecided(f"What a run left cannot be read: {error}") from None

    def _judged(self) -> TrialAnswer:
        through, up_to, again = (self._sides[arm] for arm in (UNINTERRUPTED, UP_TO, RESTARTED))
        if (unlike := _first_difference(through, up_to, 0)) is not None:
            kind, place = unlike
            raise Undecided(
                f"The job does not repeat itself: two runs with the same seeds have other {kind} from step {place} on, "
                "so that bits say nothing of a restart.",
                "Find the operation that does not repeat itself: trueline trial repeat.",
            )
        begins = _place_of(again, through, self.job.at)
        differing = [kind for kind in COLUMNS if _differs(through, again, kind, begins, 0)]
        if not _are_drawn_from(through, again, begins):
            differing = [kind for kind in differing if kind != STREAMS]
        states = self._states(begins, up_to, again)
        causes = [kind for kind in CAUSES if kind in differing or (kind == STATES and states)]
        num_steps = min(len(through.steps) - begins, len(again.steps))
        if not causes and (later := _first_difference(through, again, begins)) is None:
            return self._answered(
                "excluded",
                [
                    f"After a restart at update {begins} the job is the same, bit for bit, in "
                    f"{counted(num_steps, 'step')}: {listed([kind for kind in COLUMNS if again.of(kind, 0)])}.",
                    *self._unlooked(begins, again),
                ],
            )
        if not causes:
            kind, place = later  # pyright: ignore[reportPossiblyUnboundVariable]
            says = [
                f"The job goes on at update {begins} with the same values, and has other {kind} from step "
                f"{begins + place} on: something that is not looked at is not restored."
            ]
            return self._answered("confirmed", says, credible=("something-else",))
        says = [self._sentence(kind, through, again, begins, states) for kind in causes]
        same = [kind for kind in CAUSES if kind not in causes and (kind == STATES or again.of(kind, 0))]
        says += [f"The same as in the run that was not stopped: {listed(same)}."] if same else []
        return self._answered(
            "confirmed",
            [*says, *self._unlooked(begins, again)],
            [ADVICE[kind] for kind in causes],
            tuple(CAUSES[kind] for kind in causes),
            [self._finding(kind, says[number], begins) for number, kind in enumerate(causes)],
        )

    def _states(self, begins: int, up_to: Side, again: Side) -> str:
        """How the optimizer's states differ, in words; '' where they do not, or cannot be compared."""
        if begins != self.job.at:
            return ""
        states_before, states_after = up_to.states("closing_states"), again.states("opening_states")
        for rank, before in sorted(states_before.items()):
            after = states_after.get(rank, {})
            params = sorted({param for by_param in before.values() for param in by_param})
            differing = [
                param
                for param in params
                if any(by_param.get(param) != after.get(name, {}).get(param) for name, by_param in before.items())
            ]
            if differing:
                gone = not any(param in by_param for by_param in after.values() for param in differing)
                what = "has none" if gone else "has others"
                return f"on rank {rank} the optimizer {what} of {named_some(differing)}"
        return ""

    def _sentence(self, kind: str, through: Side, again: Side, begins: int, states: str) -> str:
        if kind == STATES:
            return f"The optimizer's states are not those that were left: {states}."
        ranks = _differs(through, again, kind, begins, 0)
        on = ranks_text(ranks, all_ranks=list(through.run.ranks))
        where = f"at update {begins}, the first after the restart, on {on}"
        if kind == "samples" and _differs(through, again, kind, 0, 0) == () and begins:
            return f"The data began again: {where} samples are those of update 0."
        if kind == "learning rate":
            rate, expected = (side.of(kind, place)[ranks[0]][0][0] for side, place in ((again, 0), (through, begins)))
            return f"The learning rate is {rate:g} {where}, and {expected:g} in the run that was not stopped."
        if kind == "weights":
            return f"Weights are those of no update of the run that was not stopped: {where}."
        verb = "is" if kind == "loss scale" else "are"
        return f"The {kind} {verb} not as in the run that was not stopped: {where}."

    def _finding(self, kind: str, claim: str, begins: int) -> Finding:
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

    def _unlooked(self, begins: int, again: Side) -> list[str]:
        says = []
        if begins != self.job.at:
            says.append(
                f"It went on at update {begins}, and was stopped after update {self.job.at}: its states of the "
                f"optimizer were not compared. --at {begins} compares them, if the script saves then."
            )
        missing = [kind for kind in COLUMNS if not again.of(kind, 0)]
        return [*says, f"Not seen in this job: {listed(missing)}."] if missing else says

    def _answered(
        self,
        answer: Answer,
        says: Sequence[str],
        then: Sequence[str] = (),
        credible: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> TrialAnswer:
        names = dict.fromkeys(entry["arm"] for entry in self.runs.log)
        arms = [
            Arm(name, sum(entry["arm"] == name for entry in self.runs.log), int(name == RESTARTED and bool(credible)))
            for name in names
        ]
        return self.runs.end(
            TrialAnswer(
                *("resume", QUESTION, answer, tuple(says), tuple(arms), tuple(then), tuple(credible)),
                findings=tuple(findings),
            )
        )


def _differs(through: Side, side: Side, kind: str, begins: int, place: int) -> tuple[int, ...]:
    """Ranks whose value of ``kind`` at ``place`` of ``side`` is not that of ``through``, whose step ``begins`` is the
    first of ``side``.
    """
    expected, values = through.of(kind, begins + place), side.of(kind, place)
    return tuple(rank for rank, value in sorted(values.items()) if rank in expected and value != expected[rank])


def _are_drawn_from(through: Side, again: Side, begins: int) -> bool:
    """True if a random stream that differs after the restart is drawn from in a step of the run that was not stopped:
    of others the state says nothing.
    """
    expected, values = through.of(STREAMS, begins), again.of(STREAMS, 0)
    places = [through.of(STREAMS, place) for place in range(begins - 1, len(through.steps))]
    return any(
        len({states[rank][stream] for states in places if rank in states}) > 1
        for rank, states_taken in values.items()
        for stream, state in enumerate(states_taken)
        if rank in expected and state != expected[rank][stream]
    )


def _first_difference(through: Side, side: Side, begins: int) -> tuple[str, int] | None:
    for place in range(min(len(through.steps) - begins, len(side.steps))):
        for kind in COLUMNS:
            # streams that are drawn from show in what is drawn
            if kind != STREAMS and _differs(through, side, kind, begins, place):
                return kind, place
    return None


def _place_of(again: Side, through: Side, at: int) -> int:
    """The update with which a start goes on: the latest up to ``at`` + 1 whose weights it has, else whose samples it
    reads, else ``at``.
    """
    for kind in ("weights", "samples"):
        for place in range(min(at + 1, len(through.steps) - 1), 0, -1):
            if again.of(kind, 0) and not _differs(through, again, kind, place, 0):
                return place
    return at


def prepare(asked: Asked, *, resume_with: str, at: int = 10) -> Prepared:
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
