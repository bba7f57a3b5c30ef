"""The trials of a job, each made of what a user asks."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trueline.judge.check_run import check
from trueline.schema.errors import InputError
from trueline.schema.text.words import counted
from trueline.schema.trial_verbs import VERBS
from trueline.store.reader import Run
from trueline.trials.batch.batch import LAWS, BatchTrial
from trueline.trials.bisect.bisect import BisectTrial
from trueline.trials.bisect.commits import Commits
from trueline.trials.bisect.releases import Releases
from trueline.trials.frame.asked import Asked, Prepared, Sequential, require_share
from trueline.trials.frame.chance import clean_runs_needed
from trueline.trials.frame.runs import Way
from trueline.trials.frame.watched_job import batch_of
from trueline.trials.knobs.catalogue import IN_PROCESS, catalogue, switch_named, with_off
from trueline.trials.knobs.job import SwitchedJob
from trueline.trials.knobs.knobs import KnobTrial
from trueline.trials.modules.modules import FedJob, ModulesTrial
from trueline.trials.modules.stored import modules_stored, step_stored, write_stored
from trueline.trials.phases.phases import EXPERIMENTS, PhaseTrial, is_about_update, ways
from trueline.trials.remedy.remedy import ARMS as REMEDY_ARMS
from trueline.trials.remedy.remedy import LEAST_PAIRS, RemedyTrial
from trueline.trials.remedy.treated_job import Measure, TreatedJob, Treatment, Ways
from trueline.trials.repeat.in_place import InPlaceTrial
from trueline.trials.repeat.in_place import RepeatedJob as RepeatedInPlace
from trueline.trials.repeat.repeat import RepeatedJob, RepeatTrial
from trueline.trials.rollouts.experiments import experiments, reached
from trueline.trials.rollouts.tree import RolloutTrial
from trueline.trials.shrink.axes import BATCH, STEPS, axes_of, ranks_started, sized
from trueline.trials.shrink.shrink import ShrinkTrial
from trueline.trials.sync import ARMS, SyncTrial
from trueline.trials.vote.groups import PLACEHOLDER, Groups, devices_named, variables_of
from trueline.trials.vote.replay import ReplayedJob
from trueline.trials.vote.vote import VoteTrial


def knobs(asked: Asked, *, knob: Sequence[str] = (), only: Sequence[str] = ()) -> Prepared:
    """Which setting does the finding need? ``knob`` are settings that the user names, ``only`` limits all by name.
    Raises ``InputError``.
    """
    known = {switch.name for switch in catalogue()}
    if unknown := sorted({*only} - known - {text.partition("=")[0] for text in knob}):
        raise InputError(f"There is no setting '{unknown[0]}'; there are {', '.join(sorted(known))}.")
    job = SwitchedJob(asked.job, asked.folder, knob, only)
    runs = asked.runs_for_finding(knobs=list(knob), only=list(only))
    question = f"Which setting does it need that {_found(asked)}"
    trial = KnobTrial(runs, question, job.find, job.way, asked.error, asked.seed)
    return _sequential(asked, trial, [*asked.says(), *job.plan()], "8 to 20")


def sync(asked: Asked) -> Prepared:
    """Is it a race, or of memory? Raises ``InputError``."""
    question = f"Is it a race, or of memory, that {_found(asked)}"
    trial = SyncTrial(asked.runs_for_finding(), question, asked.error, asked.seed)
    plan = [*asked.says(), f"Arms: {', '.join(ARMS)}; those that the answer needs."]
    return _sequential(asked, trial, plan, "8 to 20")


def bisect(asked: Asked, *, good: str, bad: str | None = None, package: str | None = None) -> Prepared:
    """Since which commit is it there, or which release of a package? Raises ``InputError``."""
    runs = asked.runs_for_finding(good=good, bad=bad, **({} if package is None else {"package": package}))
    if package is None:
        line, kind, then = Commits.between(good, bad, tree=asked.folder / "checkout"), "commit", "git show"
    else:
        releases = asked.folder / "releases"
        line = Releases.between(package, good, bad, folder=releases, words=asked.command)
        kind, then = "release", f"the changelog of {package}; report it there"
    size = len(line.names)
    trial = BisectTrial(
        runs,
        f"Since which {kind} is it that {_found(asked)}",
        size,
        lambda arm, version: line.way(arm, version, asked.command),
        line.says,
        asked.error,
        asked.seed,
        line.remove,
        (f"Read its changes: {then}.",),
    )
    plan = [*asked.says(), f"{kind.capitalize()}s: {size}, from {line.says(0)} to {line.says(size - 1)}."]
    return _sequential(asked, trial, plan, str(6 + size.bit_length()))


def shrink(asked: Asked, *, axis: Sequence[str] = (), cured_by: str | None = None) -> Prepared:
    """What is the smallest job that still shows it? ``axis`` are options of the command that may be smaller,
    ``cured_by`` a setting as of ``knobs`` that makes the finding go away. Raises ``InputError``.
    """
    job, runs = asked.job, asked.runs_for_finding(axes=list(axis), cured_by=cured_by)
    axes = axes_of(asked.command, steps=job.last_step + 1, batch=batch_of(Run(asked.run)), own=axis)
    if not axes:
        raise InputError("Nothing of this job can be made smaller from outside. Name options of it with --axis.")
    cure = [] if cured_by is None else [switch_named(cured_by)]

    def way(arm: str, sizes: Mapping[str, int], cured: bool) -> Way:
        words, changes = sized(asked.command, sizes)
        words, environ = with_off(words, cure if cured else (), asked.folder / "files")
        held = [each.to_process() for each in cure if cured and each.how in IN_PROCESS]
        changes["switches"] = [*changes["switches"], *held]
        changes["off"] = [*changes["off"], *(each["name"] for each in held)]
        return Way(arm, environ, words, changes | job.up_to(sizes.get(STEPS, job.last_step + 1) - 1))

    def command(sizes: Mapping[str, int]) -> str:
        words, _ = sized(asked.command, {name: value for name, value in sizes.items() if name != BATCH})
        of = f", with batches of {sizes[BATCH]}" if BATCH in sizes else ""
        return f"{shlex.join(words)} (up to step {sizes.get(STEPS, job.last_step + 1) - 1}{of})"

    question = f"What is the smallest job in which {_found(asked)}"
    trial = ShrinkTrial(runs, question, axes, way, command, bool(cure), asked.error)
    plan = [*asked.says(), "Axes: " + ", ".join(f"{each.name} (now {each.now})" for each in axes) + "."]
    return _sequential(asked, trial, plan, str(4 + sum(2 * each.now.bit_length() for each in axes)))


def rl(asked: Asked, *, way: Sequence[str] = ()) -> Prepared:
    """Why do rollout engine and trainer disagree? ``way`` are ways to reach an experiment, ``NAME=OPTION=VALUE``.
    Raises ``InputError``.
    """
    if asked.code is None:  # what tells the gap from others of its kind cannot be judged of one token
        found = {each.code for each in check(Run(asked.run)).findings}
        code = next((code for code in ("logprob-gap", "logprob-gap-grows") if code in found), None)
        asked = replace(asked, code=code)
    every = experiments()
    known = reached(asked.command, way, every)
    ways = {name: Way(name, environ, words) for name, (words, environ) in known.items()}
    trial = RolloutTrial(
        asked.runs_for_finding(ways=list(way)), f"Why is it that {_found(asked)}", every, ways, asked.error, asked.seed
    )
    plan = [*asked.says(), *(f"{each.name}: {shlex.join(known[each.name][0])}" for each in every if each.name in known)]
    open_ = [each.name for each in every if each.name not in known]
    plan += [f"Cannot be reached: {', '.join(open_)} (name a way with --way)."] if open_ else []
    return _sequential(asked, trial, plan, "4 to 20")


def repeat(asked: Asked, *, again: int = 3, in_place: bool = False) -> Prepared:
    """Which operation does not repeat itself? Raises ``InputError``."""
    steps, words = asked.num_steps, " ".join(asked.command)
    if in_place:
        asked = asked if asked.out else replace(asked, out="trials/repeat-in-place")
        in_place_job = RepeatedInPlace(asked.plain_job, steps, asked.seed, again + 1)
        runs = asked.runs_of(in_place_job, 1, steps=steps, times=again + 1)
        each = f"The run: {words}, each operation of steps 0 to {steps - 1} called {again + 1} times."
        return Prepared(InPlaceTrial(runs, again + 1), [each], "1", runs)
    job = RepeatedJob(asked.plain_job, asked.folder, steps, asked.seed)
    runs = asked.runs_of(job, again + 1, steps=steps)
    each = f"Each run: {words}, steps 0 to {steps - 1} recorded with fingerprints."
    return Prepared(RepeatTrial(runs, again), [each], str(again + 1), runs)


def vote(
    asked: Asked,
    *,
    devices: str,
    group: int | None = None,
    variable: str | None = None,
    rate: float = 0.3,
    deterministic: bool = False,
    at_once: int = 1,
) -> Prepared:
    """Which device makes something else of the same work? Raises ``InputError``."""
    require_share("--rate", rate, below=1.0)
    job, steps = asked.plain_job, asked.num_steps
    names = devices_named(devices)
    size = group or ranks_started(asked.command) or 1
    groups = Groups(names, size, variables_of(names, asked.command, variable), asked.command)
    is_told = variable is not None or any(PLACEHOLDER in word for word in asked.command)
    replayed = ReplayedJob(job, steps, asked.seed, deterministic, is_told)
    known = {"devices": list(names), "group": size, "variable": variable, "rate": rate, "error": asked.error}
    runs = asked.runs_of(replayed, asked.most, steps=steps, deterministic=deterministic, **known)
    trial = VoteTrial(runs, replayed, groups, rate, asked.error, asked.seed, at_once)
    every = f"{counted(groups.count, 'group')} of {counted(size, 'device')}, of {', '.join(names)}"
    plan = [
        f"Each run: {' '.join(asked.command)}, the bits of steps 0 to {steps - 1}.",
        f"{every}; {_told(groups.variables)}.",
    ]
    return _sequential(asked, trial, plan, f"{groups.count * max(clean_runs_needed(rate, error=0.05), 2)}")


def remedy(asked: Asked, *, remedy: str, ref: str | None = None, pairs: int = 8) -> Prepared:
    """Does a remedy make the job well? Raises ``InputError``."""
    if pairs < LEAST_PAIRS:
        raise InputError(f"--pairs is {pairs}; give {LEAST_PAIRS} or more: fewer cannot beat chance.")
    treatment = Treatment.of(remedy)
    job = asked.plain_job
    measure = Measure.between(Run(asked.run), None if ref is None else Run(ref), asked.steps)
    known = {"remedy": remedy, "pairs": pairs, "error": asked.error}
    known |= {"first": measure.first, "last": measure.last, "good": measure.good}
    runs = asked.runs_of(TreatedJob(job, measure), asked.most, **known)
    ways = Ways(asked.command, treatment, asked.seed, asked.folder / "files")
    question = f"Does the remedy {remedy} make the job well?"
    trial = RemedyTrial(runs, question, ways.way, treatment, measure, pairs, asked.error, asked.seed)
    plan = [
        f"Each run: {' '.join(asked.command)}, watched.",
        f"Arms, in {counted(pairs, 'pair')} of the same seeds: {', '.join(REMEDY_ARMS)}.",
        f"Measured: {measure}.",
    ]
    return Prepared(trial, plan, str(len(REMEDY_ARMS) * pairs), runs)


def phases(asked: Asked) -> Prepared:
    """Which phase of a step does it need, and which half of the model? Raises ``InputError``."""
    if is_about_update(code := asked.job.wanted.code):
        raise InputError(
            f"{code} is about the update itself: its phase is known, and holding the update would make it. Take "
            "trueline trial knobs, or trueline trial op for the call of the optimizer."
        )
    question = f"Which phase of a step does it need that {_found(asked)}"
    trial = PhaseTrial(asked.runs_for_finding(), question, EXPERIMENTS, ways(), asked.error, asked.seed)
    arms = [f"{each.name}: {each.says}." for each in EXPERIMENTS]
    return _sequential(asked, trial, [*asked.says(), "Arms, those that the answer needs:", *arms], "10 to 20")


def modules(asked: Asked, *, ref: str, step: int | None = None) -> Prepared:
    """Which modules are wrong by themselves? Raises ``InputError``, and ``CannotTell`` where ``ref`` stored nothing."""
    good = Run(ref)
    at, job, folder = step_stored(good, step), asked.plain_job, asked.folder / "stored"
    plan = {**good.manifest.plan, "sinks": [], "on_finding": None, "stop": "", "when": []}
    names = modules_stored(good, at)
    fed = FedJob(job, ref, at, plan, lambda: write_stored(good, at, folder))
    runs = replace(asked.runs_of(fed, asked.most, ref=str(Path(ref).absolute()), step=at), about=ref)
    says = [
        f"Each run: {' '.join(asked.command)}, up to step {at}, compared with {ref}.",
        f"Arm: fed (twice): {counted(len(names), 'module')} given what they were given there.",
    ]
    return Prepared(ModulesTrial(runs, at, names), says, "2", runs)


def batch(asked: Asked, *, law: str = ",".join(LAWS)) -> Prepared:
    """Do loss and gradients obey the laws of a batch? Raises ``InputError``."""
    laws = [each for each in LAWS if each in law.split(",")]
    if not laws or {*law.split(",")} - {*LAWS}:
        raise InputError(f"--law is '{law}'; give some of {', '.join(LAWS)}, with commas.")
    plan = [f"Each run: {' '.join(asked.command)}, up to its first update.", f"Laws: {', '.join(laws)}."]
    trial = BatchTrial(asked.plain_job, laws, asked.seed)
    told = f", {trial.told}" if trial.told else ""
    return Prepared(trial, plan, f"3 to {trial.most}{told}", trial)


_MAKE: Mapping[str, Callable[..., Prepared]] = {
    "knobs": knobs,
    "sync": sync,
    "rl": rl,
    "bisect": bisect,
    "shrink": shrink,
    "remedy": remedy,
    "vote": vote,
    "repeat": repeat,
    "phases": phases,
    "modules": modules,
    "batch": batch,
}


def prepared(asked: Asked, **more: Any) -> Prepared:
    """The trial of the verb that is asked for, with the options of its own. Raises ``InputError``, also for what the
    verb does not take.
    """
    make = _MAKE.get(asked.verb)
    if make is None:
        raise InputError(f"There is no trial '{asked.verb}' of a job; there are {', '.join(_MAKE)}.")
    verb, usual = VERBS[asked.verb], Asked(asked.verb)
    if foreign := [name for name in sorted(verb.lacks) if getattr(asked, name) != getattr(usual, name)]:
        raise InputError(f"Trial {asked.verb} takes no {foreign[0]}. Leave it out.")
    if verb.about_run != bool(asked.run):
        needs = "is about a Run: name one" if verb.about_run else "is about a command alone: name no Run"
        raise InputError(f"Trial {asked.verb} {needs}.")
    try:
        inspect.signature(make).bind(asked, **more)
    except TypeError as error:
        raise InputError(f"Trial {asked.verb}: {error}. It takes {inspect.signature(make)}.") from None
    return make(asked, **more)


def _sequential(asked: Asked, trial: Sequential, plan: Sequence[str], usual: str) -> Prepared:
    """A trial that stops once it knows."""
    most = int(usual.split()[-1])
    if most > asked.most:
        takes = f"at most {asked.most}, which may not be enough: about {usual} where every run shows it (--runs {most})"
    else:
        takes = f"about {usual} where every run shows it, at most {asked.most}"
    return Prepared(trial, plan, takes, trial.runs)


def _found(asked: Asked) -> str:
    wanted = asked.job.wanted
    return f"{wanted.code} is found? {wanted.claim}"


def _told(variables: Sequence[str]) -> str:
    return f"a run has them in {', '.join(variables)}" if variables else f"a run has them for {PLACEHOLDER}"
