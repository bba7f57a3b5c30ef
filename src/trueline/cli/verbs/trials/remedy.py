"""`trueline trial remedy`: whether a remedy makes a job well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the remedy makes the job better, as told below",
    "excluded": "the remedy has no effect",
    "undecided": "whether the remedy has an effect cannot be told",
}


@verb("remedy", _MEANS)
def command(
    remedy: Annotated[
        str,
        typer.Option(
            help="fp32:MODULE, cpu:MODULE, clip:MODULE=NORM, unfused, deterministic, or a setting as of trial knobs.",
            metavar="REMEDY",
        ),
    ],
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
) -> Mapping[str, Any]:
    """Run a training command as it is, with a remedy and with a sham that does the same elsewhere, from the same seeds,
    and say whether the remedy recovers the job, partly, or has no effect.

    confirmed: it recovers, or partly; excluded: no effect. Exit code 0: one of these; 3: undecided.

    Example: trueline trial remedy runs/bad --ref runs/good --remedy fp32:layers.3.mlp -- python train.py
    """
    return {"remedy": remedy, "ref": ref, "pairs": pairs}
