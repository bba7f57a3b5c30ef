"""`trueline trial repeat`: which operation does not repeat itself."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import TIMEOUT, DryRun, Keep, Timeout, Words

_MEANS = {
    "confirmed": "the job does not repeat itself",
    "excluded": "the job repeats itself",
    "undecided": "whether the job repeats itself cannot be told",
}


def command(
    words: Words = None,
    again: Annotated[
        int, typer.Option(help="How many times it, or with --in-place each operation, is run again.", min=1)
    ] = 3,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Run it once, and call each operation again where it is.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Steps that are recorded and compared.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Random seed of the job, where it sets none.")] = 0,
    timeout: Timeout = TIMEOUT,
    out: Annotated[
        str, typer.Option(help="Folder of the trial; one that was begun with the same command goes on.")
    ] = "",
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command several times with the same seeds, record its first steps with fingerprints, and name the
    first call that makes something else of the same inputs. With --in-place run it once, call each operation of its
    first steps several times on copies of its inputs, and name all that do not return the same bits, and how often.

    confirmed: there is one, or something differs that no recorded call made; excluded: all bits are the same. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial repeat -- torchrun --nproc-per-node 2 train.py
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.AskedAgain(words or (), again, steps, seed, timeout, out, keep, in_place)
    run_and_print(asked, start.repeat(asked), means=_MEANS, dry_run=dry_run, json=json)
