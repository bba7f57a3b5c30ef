"""`trueline trial repeat`: which operation does not repeat itself."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import TIMEOUT, DryRun, Keep, Out, Timeout, Words

_MEANS = {
    "confirmed": "the job does not repeat itself",
    "excluded": "the job repeats itself",
    "undecided": "whether the job repeats itself cannot be told",
}


def command(
    words: Words = None,
    again: Annotated[int, typer.Option(help="How many times it is run again.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="Steps that are recorded and compared.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Random seed of the job, where it sets none.")] = 0,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/repeat",
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command several times with the same seeds, record its first steps with fingerprints, and name the
    first call that makes something else of the same inputs.

    confirmed: there is one, or something differs that no recorded call made; excluded: all bits are the same. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial repeat -- torchrun --nproc-per-node 2 train.py
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.AskedAgain(words or (), again, steps, seed, timeout, out, keep)
    run_and_print(asked, start.repeat(asked), means=_MEANS, dry_run=dry_run, json=json)
