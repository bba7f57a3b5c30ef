"""`trueline trial shrink`: the smallest job that still shows a finding."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import (
    ERROR,
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
    "confirmed": "a smaller job still shows it",
    "excluded": "no smaller job shows it",
    "undecided": "whether a smaller job shows it cannot be told",
}


def command(
    run: RunOf,
    words: Words = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the command with a whole number that may be smaller; may be given again.",
            metavar="OPTION",
        ),
    ] = None,
    cured_by: Annotated[
        str | None,
        typer.Option(
            help="What makes the finding go away, as a setting of `trial knobs`: the last job is run with it, too.",
            metavar="SETTING",
        ),
    ] = None,
    code: Code = None,
    error: Error = ERROR,
    runs: Most = 40,
    steps: Steps = None,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/shrink",
    seed: Seed = 0,
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command with fewer steps, ranks, layers, smaller batches and shorter sequences, and say how small
    it may be and still show the same finding.

    confirmed: so small; excluded: not smaller. Exit code 0: one of these; 3: undecided.

    Example: trueline trial shrink runs/bad -- torchrun --nproc-per-node 8 train.py --num-layers 24
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.Asked("shrink", run, words or (), code, error, runs, steps, timeout, out, seed, keep)
    prepared = start.shrink(asked, own=axis or (), cured_by=cured_by)
    run_and_print(asked, prepared, means=_MEANS, dry_run=dry_run, json=json)
