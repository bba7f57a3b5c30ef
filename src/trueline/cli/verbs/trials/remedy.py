"""`trueline trial remedy`: whether a remedy makes a job well."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import ERROR, MOST, TIMEOUT, DryRun, Error, Keep, Most, Out, Timeout, Words

_MEANS = {
    "confirmed": "the remedy makes the job better, as told below",
    "excluded": "the remedy has no effect",
    "undecided": "whether the remedy has an effect cannot be told",
}


def command(
    run: Annotated[str, typer.Argument(help="A Run of the job that is to be made well.", metavar="RUN")],
    remedy: Annotated[
        str,
        typer.Option(
            help="fp32:MODULE, cpu:MODULE, clip:MODULE=NORM, unfused, deterministic, or a setting as of trial knobs.",
            metavar="REMEDY",
        ),
    ],
    words: Words = None,
    ref: Annotated[
        str | None,
        typer.Option(
            help="A Run that is as it should be: what is wrong is how much lower its loss is.",
            metavar="RUN",
            show_default="what is wrong are losses and gradients that are not finite",
        ),
    ] = None,
    pairs: Annotated[
        int, typer.Option(help="Seeds, each run three times: as it is, with the remedy, with a sham.")
    ] = 8,
    steps: Annotated[
        int | None, typer.Option(help="Steps of each run.", show_default="as many as RUN has", min=2, metavar="N")
    ] = None,
    error: Error = ERROR,
    runs: Most = MOST,
    seed: Annotated[int, typer.Option(help="Seed of the first pair; the next has one more, and so on.")] = 0,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/remedy",
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command as it is, with a remedy and with a sham that does the same elsewhere, from the same seeds,
    and say whether the remedy recovers the job, partly, or has no effect.

    confirmed: it recovers, or partly; excluded: no effect. Exit code 0: one of these; 3: undecided.

    Example: trueline trial remedy runs/bad --ref runs/good --remedy fp32:layers.3.mlp -- python train.py
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.AskedRemedy(
        *(run, words or (), remedy, ref, pairs, steps),
        *(error, runs, seed, timeout, out, keep),
    )
    run_and_print(asked, start.remedy(asked), means=_MEANS, dry_run=dry_run, json=json)
