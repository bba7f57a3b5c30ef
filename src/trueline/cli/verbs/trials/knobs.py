"""`trueline trial knobs`: which framework setting a finding needs."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import (
    ERROR,
    MOST,
    TIMEOUT,
    Code,
    DryRun,
    Error,
    Keep,
    Most,
    Out,
    RunOf,
    Seed,
    Steps,
    Timeout,
    Words,
)

_MEANS = {
    "confirmed": "the finding needs what is named below",
    "excluded": "the finding needs none of the settings that could be switched",
    "undecided": "which setting the finding needs cannot be told",
}


def command(
    run: RunOf,
    words: Words = None,
    code: Code = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting of your own: NAME=VALUE (a variable and its off value), --flag (left out), --option=VALUE "
            "(off); may be given again.",
            metavar="SETTING",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this setting; may be given again.", metavar="NAME")
    ] = None,
    error: Error = ERROR,
    runs: Most = MOST,
    steps: Steps = None,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/knobs",
    seed: Seed = 0,
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command with framework settings switched off, and say which of them a finding needs.

    confirmed: one setting, two together, or two of which each suffices; excluded: none of those that it has on. Exit
    code 0: one of these; 3: undecided.

    Example: trueline trial knobs runs/bad -- torchrun --nproc-per-node 2 train.py
    """
    from pathlib import Path

    from trueline.cli import trial_screen
    from trueline.schema.errors import InputError
    from trueline.store.reader import Run
    from trueline.trials.knobs.catalogue import catalogue
    from trueline.trials.knobs.job import SwitchedJob, knob_trial
    from trueline.trials.runs import Runs
    from trueline.trials.watched_job import WatchedJob

    job = trial_screen.job_of(words, timeout=timeout, error=error, verb="knobs")
    known = {switch.name for switch in catalogue()}
    if unknown := sorted({*(only or ())} - known - {text.partition("=")[0] for text in knob or ()}):
        raise InputError(f"There is no setting '{unknown[0]}'; there are {', '.join(sorted(known))}.")
    watched = WatchedJob.like(Run(run), job, code=code, steps=steps)
    switched = SwitchedJob(watched, Path(out), knob or (), only or ())
    if dry_run:
        usual = f"about 8 to 20 where every run shows it, at most {runs}"
        trial_screen.print_plan(switched.plan(), seconds=watched.seconds, runs=usual)
        raise typer.Exit
    asked = {"command": list(job.words), "code": watched.wanted.code, "steps": watched.last_step + 1, "seed": seed}
    asked |= {"error": error, "knobs": list(knob or ()), "only": list(only or ()), "plan": dict(watched.plan)}
    with_log = Runs("knobs", Path(out), watched, asked, runs, keeps_all=keep)
    trial = knob_trial(switched, with_log, error=error, seed=seed)
    with trial_screen.running(with_log, list(job.words)):
        answer = trial.answer()
    trial_screen.end(answer, Path(out), means=_MEANS, json=json)
