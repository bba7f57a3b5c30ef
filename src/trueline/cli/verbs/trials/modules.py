"""`trueline trial modules`: which modules are wrong by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "what is named below makes something else of the same values",
    "excluded": "no module makes something else of what it was given",
    "undecided": "whether a module makes something else cannot be told",
}


@verb("modules", _MEANS)
def command(
    ref: Annotated[
        str,
        typer.Option(help="A Run that is as it should be, with stored values (depth = tensor).", metavar="RUN"),
    ],
    step: Annotated[
        int | None,
        typer.Option(help="The step to look at.", show_default="the first that it stored", min=0, metavar="N"),
    ] = None,
) -> Mapping[str, Any]:
    """Run a training command up to a step that a Run which is as it should be stored, give each module what it was
    given there (inputs, gradients, weights), and name all that make something else of it than rounding explains.

    There is no search: every module is judged by itself, forward and backward, in one pass.

    confirmed: some do, or code between modules does; excluded: none. Exit code 0: one of these; 3: undecided.

    Example: trueline trial modules --ref runs/good -- torchrun --nproc-per-node 2 train.py
    """
    return {"ref": ref, "step": step}
