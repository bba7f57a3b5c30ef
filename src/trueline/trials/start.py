"""Trials of a job from what a user asks: a Run with the finding, and the command that made it."""

from __future__ import annotations

import inspect
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trueline.analyze.check_run import check
from trueline.schema.errors import InputError
from trueline.schema.text.words import counted
from trueline.store.reader import Run
from trueline.trials.bisect.bisect import BisectTrial
from trueline.trials.bisect.commits import Commits
from trueline.trials.bisect.releases import Releases
from trueline.trials.chance import clean_runs_needed
from trueline.trials.knobs.catalogue import IN_PROCESS, catalogue, switch_named, with_off
from trueline.trials.knobs.job import SwitchedJob
from trueline.trials.knobs.knobs import KnobTrial
from trueline.trials.remedy.remedy import ARMS as REMEDY_ARMS
from trueline.trials.remedy.remedy import LEAST_PAIRS, RemedyTrial
from trueline.trials.remedy.treated_job import Measure, TreatedJob, Treatment, Ways
from trueline.trials.repeat.in_place import InPlaceTrial
from trueline.trials.repeat.in_place import RepeatedJob as RepeatedInPlace
from trueline.trials.repeat.repeat import RepeatedJob, RepeatTrial
from trueline.trials.rollouts.experiments import experiments, reached
from trueline.trials.rollouts.tree import RolloutTrial
from trueline.trials.runs import Runs, Way
from trueline.trials.shrink.axes import BATCH, STEPS, axes_of, ranks_started, sized
from trueline.trials.shrink.shrink import ShrinkTrial
from trueline.trials.sync import ARMS, SyncTrial
from trueline.trials.trial import Job
from trueline.trials.vote.groups import PLACEHOLDER, Groups, devices_named, variables_of
from trueline.trials.vote.replay import ReplayedJob
from trueline.trials.vote.vote import VoteTrial
from trueline.trials.watched_job import WatchedJob, batch_of

Verb = Literal["knobs", "sync", "bisect", "shrink", "rl"]


@dataclass(frozen=True)
class Asked:
    """What all trials of a job are asked: see the options of `trueline trial knobs`."""

    verb: Verb
    run: str
    words: Sequence[str]
    code: str | None = None
    error: float = 0.05
    most: int = 200
    steps: int | None = None
    timeout: float = 3600.0
    out: str = ""
    seed: int = 0
    keep: bool = False

    @property
    def folder(self) -> Path:
        """Of the trial."""
        return Path(self.out or f"trials/{self.verb}")

    @cached_property
    def job(self) -> WatchedJob:
        """Raises ``InputError`` for what cannot be."""
        _require_share("--error", self.error, below=0.5)
        job = _job(f"{self.verb} RUN", self.words, self.timeout)
        return WatchedJob.like(Run(self.run), job, code=self.code, steps=self.steps)

    def says(self) -> list[str]:
        """What is looked for and what each run is, in words."""
        seconds = self.job.seconds
        took = [] if seconds is None else [f"The steps of RUN took {seconds:.0f} s, without the start of the job."]
        return [*self.job.plan_says(), *took]

    def runs_says(self) -> str:
        """How many runs it may take."""
        return f"at most {self.most}"

    def runs(self, **more: Any) -> Runs:
        """The runs of the trial; ``more`` is what else it is asked."""
        job = self.job
        asked = {"command": list(self.words), "code": job.wanted.code, "steps": job.last_step + 1, "seed": self.seed}
        asked |= {"error": self.error, "plan": dict(job.plan), **more}
        return Runs(self.verb, self.folder, job, asked, self.most, keeps_all=self.keep)


@dataclass(frozen=True)
class AskedAgain:
    """What ``repeat`` is asked: it needs no Run. See the options of `trueline trial repeat`."""

    words: Sequence[str]
    again: int = 3
    steps: int = 2
    seed: int = 0
    timeout: float = 3600.0
    out: str = ""
    keep: bool = False
    in_place: bool = False

    @property
    def folder(self) -> Path:
        """Of the trial."""
        return Path(self.out or ("trials/repeat-in-place" if self.in_place else "trials/repeat"))

    def says(self) -> list[str]:
        """What each run is, in words."""
        if self.in_place:
            each = f"each operation of steps 0 to {self.steps - 1} called {self.again + 1} times"
            return [f"The run: {' '.join(self.words)}, {each}."]
        return [f"Each run: {' '.join(self.words)}, steps 0 to {self.steps - 1} recorded with fingerprints."]

    def runs_says(self) -> str:
        """How many runs it takes."""
        return "1" if self.in_place else str(self.again + 1)


@dataclass(frozen=True)
class AskedVote:
    """What ``vote`` is asked: it needs no Run. See the options of `trueline trial vote`."""

    words: Sequence[str]
    devices: str
    group: int | None = None
    variable: str | None = None
    rate: float = 0.3
    steps: int = 20
    deterministic: bool = False
    error: float = 0.05
    most: int = 200
    seed: int = 0
    timeout: float = 3600.0
    out: str = ""
    keep: bool = False

    @property
    def folder(self) -> Path:
        """Of the trial."""
        return Path(self.out or "trials/vote")

    def says(self) -> list[str]:
        """What each run is, in words."""
        return [f"Each run: {' '.join(self.words)}, the bits of steps 0 to {self.steps - 1}."]

    def runs_says(self) -> str:
        """How many runs it may take."""
        return f"at most {self.most}"


@dataclass(frozen=True)
class AskedRemedy:
    """What ``remedy`` is asked: see the options of `trueline trial remedy`."""

    run: str
    words: Sequence[str]
    remedy: str
    ref: str | None = None
    pairs: int = 8
    steps: int | None = None
    error: float = 0.05
    most: int = 200
    seed: int = 0
    timeout: float = 3600.0
    out: str = ""
    keep: bool = False

    @property
    def folder(self) -> Path:
        """Of the trial."""
        return Path(self.out or "trials/remedy")

    def says(self) -> list[str]:
        """What each run is, in words."""
        return [f"Each run: {' '.join(self.words)}, watched."]

    def runs_says(self) -> str:
        """How many runs it takes."""
        return str(len(REMEDY_ARMS) * self.pairs)


@dataclass(frozen=True)
class Prepared:
    """A trial that can be run, what ``--dry-run`` says of it, and about how many runs it takes."""

    trial: (
        KnobTrial
        | SyncTrial
        | BisectTrial
        | ShrinkTrial
        | RepeatTrial
        | RolloutTrial
        | VoteTrial
        | RemedyTrial
        | InPlaceTrial
    )
    plan: Sequence[str]
    usual: str


def knobs(asked: Asked, *, own: Sequence[str] = (), only: Sequence[str] = ()) -> Prepared:
    """Which setting does the finding need? ``own`` are settings that the user names, ``only`` limits all by name.
    Raises ``InputError``.
    """
    known = {switch.name for switch in catalogue()}
    if unknown := sorted({*only} - known - {text.partition("=")[0] for text in own}):
        raise InputError(f"There is no setting '{unknown[0]}'; there are {', '.join(sorted(known))}.")
    job = SwitchedJob(asked.job, asked.folder, own, only)
    runs = asked.runs(knobs=list(own), only=list(only))
    question = f"Which setting does it need that {_found(asked)}"
    return Prepared(KnobTrial(runs, question, job.find, job.way, asked.error, asked.seed), job.plan(), "8 to 20")


def sync(asked: Asked) -> Prepared:
    """Is it a race, or of memory? Raises ``InputError``."""
    trial = SyncTrial(asked.runs(), f"Is it a race, or of memory, that {_found(asked)}", asked.error, asked.seed)
    return Prepared(trial, [f"Arms: {', '.join(ARMS)}; those that the answer needs."], "8 to 20")


def bisect(asked: Asked, *, good: str, bad: str | None = None, package: str | None = None) -> Prepared:
    """Since which commit is it there, or which release of a package? Raises ``InputError``."""
    runs = asked.runs(good=good, bad=bad, **({} if package is None else {"package": package}))
    if package is None:
        line, kind, then = Commits.between(good, bad, tree=asked.folder / "checkout"), "commit", "git show"
    else:
        releases = asked.folder / "releases"
        line = Releases.between(package, good, bad, folder=releases, words=asked.words)
        kind, then = "release", f"the changelog of {package}; report it there"
    size = len(line.names)
    trial = BisectTrial(
        runs,
        f"Since which {kind} is it that {_found(asked)}",
        size,
        lambda arm, version: line.way(arm, version, asked.words),
        line.says,
        asked.error,
        asked.seed,
        line.remove,
        (f"Read its changes: {then}.",),
    )
    plan = [f"{kind.capitalize()}s: {size}, from {line.says(0)} to {line.says(size - 1)}."]
    return Prepared(trial, plan, str(6 + size.bit_length()))


def shrink(asked: Asked, *, own: Sequence[str] = (), cured_by: str | None = None) -> Prepared:
    """What is the smallest job that still shows it? ``own`` are options of the command that may be smaller,
    ``cured_by`` a setting as of ``knobs`` that makes the finding go away. Raises ``InputError``.
    """
    job, runs = asked.job, asked.runs(axes=list(own), cured_by=cured_by)
    axes = axes_of(asked.words, steps=job.last_step + 1, batch=batch_of(Run(asked.run)), own=own)
    if not axes:
        raise InputError("Nothing of this job can be made smaller from outside. Name options of it with --axis.")
    cure = [] if cured_by is None else [switch_named(cured_by)]

    def way(arm: str, sizes: Mapping[str, int], cured: bool) -> Way:
        words, changes = sized(asked.words, sizes)
        words, environ = with_off(words, cure if cured else (), asked.folder / "files")
        held = [each.to_process() for each in cure if cured and each.how in IN_PROCESS]
        changes["switches"] = [*changes["switches"], *held]
        changes["off"] = [*changes["off"], *(each["name"] for each in held)]
        return Way(arm, environ, words, changes | job.up_to(sizes.get(STEPS, job.last_step + 1) - 1))

    def command(sizes: Mapping[str, int]) -> str:
        words, _ = sized(asked.words, {name: value for name, value in sizes.items() if name != BATCH})
        of = f", with batches of {sizes[BATCH]}" if BATCH in sizes else ""
        return f"{shlex.join(words)} (up to step {sizes.get(STEPS, job.last_step + 1) - 1}{of})"

    question = f"What is the smallest job in which {_found(asked)}"
    trial = ShrinkTrial(runs, question, axes, way, command, bool(cure), asked.error)
    plan = ["Axes: " + ", ".join(f"{axis.name} (now {axis.now})" for axis in axes) + "."]
    return Prepared(trial, plan, str(4 + sum(2 * axis.now.bit_length() for axis in axes)))


def rl(asked: Asked, *, own: Sequence[str] = ()) -> Prepared:
    """Why do rollout engine and trainer disagree? ``own`` are ways to reach an experiment, ``NAME=OPTION=VALUE``.
    Raises ``InputError``.
    """
    if asked.code is None:  # what tells the gap from others of its kind cannot be judged of one token
        found = {each.code for each in check(Run(asked.run)).findings}
        code = next((code for code in ("logprob-gap", "logprob-gap-grows") if code in found), None)
        asked = replace(asked, code=code)
    every = experiments()
    known = reached(asked.words, own, every)
    ways = {name: Way(name, environ, words) for name, (words, environ) in known.items()}
    trial = RolloutTrial(
        asked.runs(ways=list(own)), f"Why is it that {_found(asked)}", every, ways, asked.error, asked.seed
    )
    plan = [f"{each.name}: {shlex.join(known[each.name][0])}" for each in every if each.name in known]
    open_ = [each.name for each in every if each.name not in known]
    plan += [f"Cannot be reached: {', '.join(open_)} (name a way with --way)."] if open_ else []
    return Prepared(trial, plan, "4 to 20")


def repeat(asked: AskedAgain) -> Prepared:
    """Which operation does not repeat itself? Raises ``InputError``."""
    _require_seed(asked.seed)
    job = RepeatedJob(_job("repeat", asked.words, asked.timeout), asked.folder, asked.steps, asked.seed)
    known = {"command": list(asked.words), "steps": asked.steps, "seed": asked.seed}
    if asked.in_place:
        times = asked.again + 1
        in_place = RepeatedInPlace(job.job, asked.steps, asked.seed, times)
        known |= {"times": times}
        runs = Runs("repeat", asked.folder, in_place, known, 1, keeps_all=asked.keep)
        return Prepared(InPlaceTrial(runs, times), [], "1")
    runs = Runs("repeat", asked.folder, job, known, asked.again + 1, keeps_all=asked.keep)
    return Prepared(RepeatTrial(runs, asked.again), [], str(asked.again + 1))


def vote(asked: AskedVote) -> Prepared:
    """Which device makes something else of the same work? Raises ``InputError``."""
    _require_seed(asked.seed)
    _require_share("--error", asked.error, below=0.5)
    _require_share("--rate", asked.rate, below=1.0)
    job = _job("vote", asked.words, asked.timeout)
    devices = devices_named(asked.devices)
    size = asked.group or ranks_started(asked.words) or 1
    groups = Groups(devices, size, variables_of(devices, asked.words, asked.variable), asked.words)
    is_told = asked.variable is not None or any(PLACEHOLDER in word for word in asked.words)
    replayed = ReplayedJob(job, asked.steps, asked.seed, asked.deterministic, is_told)
    known = {"command": list(asked.words), "devices": list(devices), "group": size, "variable": asked.variable}
    known |= {"rate": asked.rate, "error": asked.error, "steps": asked.steps, "seed": asked.seed}
    known |= {"deterministic": asked.deterministic}
    runs = Runs("vote", asked.folder, replayed, known, asked.most, keeps_all=asked.keep)
    trial = VoteTrial(runs, replayed, groups, asked.rate, asked.error, asked.seed)
    every = f"{counted(groups.count, 'group')} of {counted(size, 'device')}, of {', '.join(devices)}"
    plan = [f"{every}; {_told(groups.variables)}."]
    return Prepared(trial, plan, f"{groups.count * max(clean_runs_needed(asked.rate, error=0.05), 2)}")


def remedy(asked: AskedRemedy) -> Prepared:
    """Does a remedy make the job well? Raises ``InputError``."""
    _require_seed(asked.seed)
    _require_share("--error", asked.error, below=0.5)
    if asked.pairs < LEAST_PAIRS:
        raise InputError(f"--pairs is {asked.pairs}; give {LEAST_PAIRS} or more: fewer cannot beat chance.")
    treatment = Treatment.of(asked.remedy)
    job = _job("remedy RUN", asked.words, asked.timeout)
    measure = Measure.between(Run(asked.run), None if asked.ref is None else Run(asked.ref), asked.steps)
    known = {"command": list(asked.words), "remedy": asked.remedy, "pairs": asked.pairs, "seed": asked.seed}
    known |= {"first": measure.first, "last": measure.last, "good": measure.good, "error": asked.error}
    runs = Runs("remedy", asked.folder, TreatedJob(job, measure), known, asked.most, keeps_all=asked.keep)
    ways = Ways(asked.words, treatment, asked.seed, asked.folder / "files")
    question = f"Does the remedy {asked.remedy} make the job well?"
    trial = RemedyTrial(runs, question, ways.way, treatment, measure, asked.pairs, asked.error, asked.seed)
    plan = [
        f"Arms, in {counted(asked.pairs, 'pair')} of the same seeds: {', '.join(REMEDY_ARMS)}.",
        f"Measured: {measure}.",
    ]
    return Prepared(trial, plan, asked.runs_says())


def prepared(asked: Asked, **more: Any) -> Prepared:
    """The trial of the verb that is asked for. Raises ``InputError``, also for what the verb does not know."""
    made: dict[str, Callable[..., Prepared]] = {
        "knobs": knobs,
        "sync": sync,
        "bisect": bisect,
        "shrink": shrink,
        "rl": rl,
    }
    make = made.get(asked.verb)
    if make is None:
        raise InputError(f"There is no trial '{asked.verb}' here; there are {', '.join(made)}.")
    try:
        inspect.signature(make).bind(asked, **more)
    except TypeError as error:
        raise InputError(f"Trial {asked.verb}: {error}. It takes {inspect.signature(make)}.") from None
    return make(asked, **more)


def _job(verb: str, words: Sequence[str], timeout: float) -> Job:
    """The job that ``words`` runs. Raises ``InputError`` for what cannot be."""
    if not timeout > 0:
        raise InputError(f"--timeout is {timeout:g}; give a number of seconds above 0.")
    if not words:
        raise InputError(
            f"No command was given. Put it behind --, for example: trueline trial {verb} -- torchrun train.py."
        )
    if shutil.which(words[0]) is None:
        raise InputError(f"'{words[0]}' is not a program on PATH. Give the command as you would without trueline.")
    return Job(tuple(words), timeout)


def _found(asked: Asked) -> str:
    wanted = asked.job.wanted
    return f"{wanted.code} is found? {wanted.claim}"


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}; give a whole number from 0 to {2**32 - 1}.")


def _require_share(option: str, share: float, *, below: float) -> None:
    if not 0 < share < below:
        raise InputError(f"{option} is {share:g}; give a probability above 0 and below {below:g}.")


def _told(variables: Sequence[str]) -> str:
    return f"a run has them in {', '.join(variables)}" if variables else f"a run has them for {PLACEHOLDER}"
