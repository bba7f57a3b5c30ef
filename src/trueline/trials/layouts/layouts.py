"""Do layouts of one job agree, by more than rounding explains? Each arm is the job in another layout, run once.

The rule, fixed before the first run. All runs begin with the same seeds, without dropout, and with forms of operations
that repeat themselves. The first arm is the reference, unless another is named; it is run again twice with its weights
moved by one rounding, which says what rounding makes of every value. An arm is the same job where its weights before
the first update and its samples are those of the reference. Then the first value in the order of execution that differs
by more than rounding makes is named: an output of a module, the loss, a gradient as the optimizer takes it, and, where
the first step agrees, a weight after the last recorded one.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trueline.schema.errors import InputError, RunError
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Answer, Job, TrialAnswer, Undecided
from trueline.trials.frame.watched_job import RUN, run_watched
from trueline.trials.layouts.judged import Floors, JudgedArm, judged_arm
from trueline.trials.layouts.measured import ArmRuns

QUESTION = "Do these layouts of one job agree, by more than rounding explains?"
ROUNDED = "rounded"
NUM_ROUNDED = 2


@dataclass(frozen=True)
class LayoutJob:
    """Runs the command of an arm for ``steps`` updates, the first and the last recorded with their values."""

    jobs: Mapping[str, Job]
    ref: str
    steps: int
    seed: int

    @property
    def job(self) -> Job:
        """That of the reference."""
        return self.jobs[self.ref]

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        plan = {"preset": "mix", "depth": "tensor", "every": self.steps - 1, "params_every": 1}
        changes = {"updates": self.steps, "seed": self.seed, "deterministic": True, "dropout": False, **way.changes}
        job = self.jobs.get(way.arm, self.job)
        _, why = run_watched(job, run_folder / RUN, plan=plan, changes=changes)
        return Outcome(None, f"arm {way.arm}: {why}") if why else Outcome(False, codes=(str(run_folder.absolute()),))


@dataclass
class LayoutsTrial:
    """Runs all arms of ``job`` through ``runs``, and holds each to the reference."""

    runs: Runs
    job: LayoutJob

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            ref = self._run(Way(self.job.ref))
            rounded = [self._run(Way(ROUNDED, changes={"rounded": number + 1})) for number in range(NUM_ROUNDED)]
            floors = Floors.of(rounded, ref, ref.steps)
            arms = [
                judged_arm(name, self._run(Way(name)), ref, rounded, floors)
                for name in self.job.jobs
                if name != self.job.ref
            ]
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)
        return self._judged(arms)

    def _run(self, way: Way) -> ArmRuns:
        (folder,) = self.runs.entry_with_outcome(way)["codes"]
        try:
            arm = ArmRuns.opened(Path(folder) / RUN)
        except RunError as error:
            raise Undecided(f"What arm {way.arm} left cannot be read: {error}") from None
        if not arm.steps:
            raise Undecided(
                f"Of arm {way.arm} no step was recorded: no module of it was called between two updates.",
                "See what trueline run says of that command.",
            )
        return arm

    def _judged(self, arms: Sequence[JudgedArm]) -> TrialAnswer:
        ref = self.job.ref
        says: list[str] = []
        for arm in arms:
            says += _says(arm, ref)
        parted = [arm for arm in arms if arm.parting is not None]
        unjudged = [arm for arm in arms if arm.other_job or arm.unclear]
        if parted:
            next_lines = [self._compare(arm.name, arm.parting.step) for arm in parted[:1] if arm.parting is not None]
            credible = [f"{arm.name}: {arm.parting.where}" for arm in parted if arm.parting is not None]
            return self._answered("confirmed", says, next_lines, credible, [_finding(arm, ref) for arm in parted])
        if unjudged:
            then = ["Give all arms one checkpoint, one seed and one global batch in one order, and another --out."]
            return self._answered("undecided", says, then if any(arm.other_job for arm in unjudged) else ())
        return self._answered("excluded", [*says, "Losses that part later by as much as these are no fault."])

    def _compare(self, name: str, step: int) -> str:
        """The command that shows the call and its line."""
        folders = {entry["arm"]: entry["codes"][0] for entry in self.runs.log if entry["showed"] is not None}
        paths = [str(Path(folders[arm]) / RUN) for arm in (name, self.job.ref)]
        return shlex.join(["trueline", "compare", *paths, "--step", str(step)])

    def _answered(
        self,
        answer: Answer,
        says: Sequence[str],
        then: Sequence[str] = (),
        credible: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> TrialAnswer:
        showed = {text.partition(":")[0] for text in credible}
        arms = self.runs.arms_by(lambda name, _: int(name in showed))
        return self.runs.end(
            TrialAnswer(
                *("layouts", QUESTION, answer, tuple(says), arms, tuple(then), tuple(credible)),
                findings=tuple(findings),
            )
        )


def _says(arm: JudgedArm, ref: str) -> list[str]:
    if arm.other_job:
        return [f"{arm.name} is not the same job as {ref}: {arm.other_job}."]
    if arm.unclear:
        return [f"{arm.name} cannot be held to {ref}: {arm.unclear}."]
    not_compared = [arm.not_compared] if arm.not_compared else []
    if arm.parting is not None:
        first, *more = arm.parting.says
        return [f"{arm.name} is apart from {ref} at step {arm.parting.step}: {first}.", *more, *not_compared]
    return [f"{arm.name} agrees with {ref}: {arm.largest}. {arm.losses}", *not_compared]


def _finding(arm: JudgedArm, ref: str) -> Finding:
    assert arm.parting is not None
    return Finding(
        code="layouts-differ",
        severity="error",
        claim=f"{arm.name} is apart from {ref}: {arm.parting.says[0]}.",
        step_first=arm.parting.step,
        step_last=arm.parting.step,
        measured=arm.parting.times,
        expected=1.0,
        unit="times what rounding makes",
        evidence={"arm": arm.name, "reference": ref, "where": arm.parting.where},
    )


def prepare(asked: Asked, *, arm: Sequence[str] = (), ref: str = "") -> Prepared:
    """Do layouts of one job agree? Raises ``InputError``."""
    if asked.words:
        raise InputError("trial layouts takes its commands as --arm NAME=COMMAND. Leave out what is behind --.")
    commands = dict(_arm(text) for text in arm)
    if len(commands) < len(arm):
        raise InputError(
            f"Two arms have the same name: {listed([text.partition('=')[0] for text in arm])}. Rename one."
        )
    if len(commands) < 2:
        raise InputError(
            f"Layouts are held to each other, and too few arms were given ({len(commands)}). Give two or more, as "
            '--arm one="python train.py" --arm two="torchrun --nproc-per-node 2 train.py".'
        )
    ref = ref or next(iter(commands))
    if ref not in commands:
        raise InputError(f"--ref is '{ref}', and there is no such arm: there are {listed(list(commands))}.")
    if asked.num_steps < 2:
        raise InputError(f"--steps is {asked.num_steps}; give 2 or more, to see what the first update left.")
    arms_asked = {name: replace(asked, words=words) for name, words in commands.items()}
    job = LayoutJob({name: request.plain_job for name, request in arms_asked.items()}, ref, asked.num_steps, asked.seed)
    num_runs = len(commands) + NUM_ROUNDED
    arms = {name: list(request.command) for name, request in arms_asked.items()}
    runs = arms_asked[ref].runs_of(job, 3 * num_runs, steps=asked.num_steps, arms=arms, ref=ref)
    runs.keeps_all = True
    plan = [f"{name}: {shlex.join(words)}{' (the reference)' * (name == ref)}" for name, words in arms.items()]
    plan.append(f"{ref} again, {NUM_ROUNDED} times with weights moved by one rounding: what rounding makes.")
    plan.append(
        f"Each run: {counted(asked.num_steps, 'update')}, without dropout; the first and the last are recorded."
    )
    return Prepared(LayoutsTrial(runs, job), plan, str(num_runs), runs)


def _arm(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, command = text.partition("=")
    if not equals or not name or not command.strip() or name == ROUNDED or any(letter.isspace() for letter in name):
        raise InputError(
            f"--arm is '{text}'; expected NAME=COMMAND, with a name without spaces other than '{ROUNDED}', as --arm "
            'two="torchrun --nproc-per-node 2 train.py".'
        )
    try:
        return name, tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"The command of arm '{name}' cannot be read: {error}. Close its quotes.") from None
