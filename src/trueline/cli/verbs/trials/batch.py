"""`trueline trial batch`: whether loss and gradients of the first step obey the laws that hold for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the first step breaks a law",
    "excluded": "the first step obeys the laws that were looked at",
    "undecided": "whether the first step obeys the laws cannot be told",
}


@verb("batch", _MEANS)
def command(
    law: Annotated[
        str, typer.Option(help="Which laws, with commas: permute, halves, padding, gradient.", metavar="LAW,…")
    ] = "permute,halves,padding,gradient",
) -> Mapping[str, Any]:
    """Run a training command up to its first update, several times with batches or weights changed, and judge whether
    losses and gradients obey what must hold: the order of rows, splitting in halves and padding change nothing, and the
    gradient is the derivative of the loss.

    The command is run about twenty times, forty where the gradient is wrong, and does what it does before its first
    update, which it never makes.

    confirmed: a law is broken; excluded: all hold. Exit code 0: one of these; 3: undecided.

    Example: trueline trial batch -- torchrun --nproc-per-node 2 train.py
    """
    return {"law": law}
