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
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.Asked("knobs", run, words or (), code, error, runs, steps, timeout, out, seed, keep)
    prepared = start.knobs(asked, own=knob or (), only=only or ())
    run_and_print(asked, prepared, means=_MEANS, dry_run=dry_run, json=json)
