"""`trueline trial shrink`: the smallest job that still shows a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "a smaller job still shows it",
    "excluded": "no smaller job shows it",
    "undecided": "whether a smaller job shows it cannot be told",
}


@verb("shrink", _MEANS)
def command(
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
) -> Mapping[str, Any]:
    """Run a training command with fewer steps, ranks, layers, smaller batches and shorter sequences, and say how small
    it may be and still show the same finding.

    confirmed: so small; excluded: not smaller. Exit code 0: one of these; 3: undecided.

    Example: trueline trial shrink runs/bad -- torchrun --nproc-per-node 8 train.py --num-layers 24
    """
    return {"axis": axis or (), "cured_by": cured_by}
