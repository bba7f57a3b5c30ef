"""`trueline trial knobs`: which framework setting a finding needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the finding needs what is named below",
    "excluded": "the finding needs none of the settings that could be switched",
    "undecided": "which setting the finding needs cannot be told",
}


@verb("knobs", _MEANS)
def command(
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
) -> Mapping[str, Any]:
    """Run a training command with framework settings switched off, and say which of them a finding needs.

    confirmed: one setting, two together, or two of which each suffices; excluded: none of those that it has on. Exit
    code 0: one of these; 3: undecided.

    Example: trueline trial knobs runs/bad -- torchrun --nproc-per-node 2 train.py
    """
    return {"knob": knob or (), "only": only or ()}
