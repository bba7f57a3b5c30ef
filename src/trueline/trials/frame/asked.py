"""What a user asks of a trial, whatever its verb, and what comes of it: a trial that can be run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from trueline.schema.errors import InputError
from trueline.schema.trial_verbs import VERBS
from trueline.store.reader import Run
from trueline.trials.frame.engines.engine import engine_named, launched
from trueline.trials.frame.engines.local import Local
from trueline.trials.frame.runs import Runner, Runs
from trueline.trials.frame.trial import Job, TrialAnswer
from trueline.trials.frame.watched_job import WatchedJob


@dataclass(frozen=True)
class Asked:
    """A request for a trial, whatever its ``verb``: see the options of ``trueline trial VERB``. ``run`` is '' for a
    verb that is about no Run; ``runs`` and ``steps`` are None for what is usual.
    """

    verb: str
    words: Sequence[str] = ()
    run: str = ""
    code: str | None = None
    error: float = 0.05
    runs: int | None = None
    steps: int | None = None
    timeout: float = 3600.0
    out: str = ""
    seed: int = 0
    keep: bool = False
    engine: str = "local"

    @property
    def folder(self) -> Path:
        """Folder of the trial."""
        return Path(self.out or f"trials/{self.verb}")

    @property
    def command(self) -> tuple[str, ...]:
        """Command line of a run: ``words``, in front of which the engine may put others."""
        return launched(self.engine, self.words)

    @property
    def max_runs(self) -> int:
        """Runs after which it is undecided."""
        return self.runs or VERBS[self.verb].max_runs

    @property
    def num_steps(self) -> int:
        """Steps of each run, of a verb that is about no Run."""
        return self.steps or VERBS[self.verb].steps or 1

    @cached_property
    def plain_job(self) -> Job:
        """The command. Raises ``InputError`` for what cannot be."""
        require_share("--error", self.error, below=0.5)
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed is {self.seed}; give a whole number from 0 to {2**32 - 1}.")
        if not self.timeout > 0:
            raise InputError(f"--timeout is {self.timeout:g}; give a number of seconds above 0.")
        if not self.words:
            usual = VERBS[self.verb].command(shlex.quote(self.run) if self.run else "RUN")
            launch = "torchrun --nproc-per-node 2 train.py"
            if self.engine.partition(":")[0] == "torchrun":  # which puts itself in front
                usual, launch = usual.replace(" -- ", f" --engine {shlex.quote(self.engine)} -- "), "python train.py"
            raise InputError(f"No command was given. Put it behind --, for example: {usual.replace('COMMAND', launch)}")
        engine = engine_named(self.engine)
        # another engine may start it on a machine that has other programs
        if isinstance(engine, Local) and shutil.which(self.command[0]) is None:
            raise InputError(
                f"'{self.command[0]}' is not a program on PATH. Give the command as you would without trueline."
            )
        return Job(self.command, self.timeout, engine)

    @cached_property
    def job(self) -> WatchedJob:
        """The command, watched for the finding of ``run``. Raises ``InputError`` for what cannot be."""
        return WatchedJob.like(Run(self.run), self.plain_job, code=self.code, steps=self.steps)

    def says(self) -> list[str]:
        """Lines of the plan: what is looked for, and what each run is."""
        seconds = self.job.seconds
        took = f"The steps of {self.run} took {seconds:.0f} s, without the start of the job." if seconds else ""
        return [*self.job.plan_says(), *filter(None, [took])]

    def runs_for_finding(self, **options: Any) -> Runs:
        """The runs of a trial about a finding; ``options`` is what else it is asked."""
        job = self.job
        facts = {"code": job.target.code, "error": self.error, "plan": dict(job.plan), **options}
        return self.runs_of(job, self.max_runs, steps=job.last_step + 1, **facts)

    def runs_of(self, runner: Runner, max_runs: int, **facts: Any) -> Runs:
        """The runs of ``runner``; ``facts`` is what decides about the trial besides the command and the seed."""
        request = {"command": list(self.command), "seed": self.seed, **facts}
        # no key where it is local: a trial on disk that has none goes on
        request |= {} if isinstance(self.plain_job.engine, Local) else {"engine": self.engine}
        return Runs(self.verb, self.folder, runner, request, max_runs, keeps_all=self.keep, about=self.run)

    def question(self, words: str) -> str:
        """``words``, which end where the finding is named, as a question about it."""
        target = self.job.target
        return f"{words} {target.code} is found? {target.claim}"

    def prepared(self, trial: Sequential, plan: Sequence[str], usual: str) -> Prepared:
        """A trial that stops once it knows. ``usual`` are the runs that it then takes, in words whose last is a number,
        the most of them.
        """
        needed = int(usual.split()[-1])
        if needed > self.max_runs:
            enough = f"about {usual} where every run shows it (--runs {needed})"
            takes = f"at most {self.max_runs}, which may not be enough: {enough}"
        else:
            takes = f"about {usual} where every run shows it, at most {self.max_runs}"
        return Prepared(trial, plan, takes, trial.runs)


class Trial(Protocol):
    """An experiment that can be run."""

    def answer(self) -> TrialAnswer:
        """Run and judge. Raises ``OSError`` where the command cannot be started."""
        ...


class Sequential(Trial, Protocol):
    """One that makes ``runs`` until it knows."""

    @property
    def runs(self) -> Runs:
        """Runs that it makes."""
        ...


class ProgressSource(Protocol):
    """Tells ``progress`` the arm that is run now and the number of runs before it, at most ``max_runs``."""

    progress: Callable[[str, int], None]
    max_runs: int


@dataclass(frozen=True)
class Prepared:
    """A trial that can be run, what ``--dry-run`` says of it, how many runs it takes, in words, and who makes them."""

    trial: Trial
    plan: Sequence[str]
    takes: str
    runs: ProgressSource


def require_share(option: str, share: float, *, below: float) -> None:
    """Raises ``InputError`` where an option is no probability above 0 and ``below`` another."""
    if not 0 < share < below:
        raise InputError(f"{option} is {share:g}; give a probability above 0 and below {below:g}.")
