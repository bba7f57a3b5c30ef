"""`trueline trial vote`: which device makes something else of the same work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "a device makes something else of the same work",
    "excluded": "no device was found to make something else of the same work",
    "undecided": "whether a device makes something else of the same work cannot be told",
}


@verb("vote", _MEANS)
def command(
    devices: Annotated[
        str, typer.Option(help="Devices or machines to try, as 0-7 or node1,node2,node3.", metavar="NAME,…")
    ],
    group: Annotated[
        int | None,
        typer.Option(
            help="Devices that one run of the command takes.",
            min=1,
            metavar="N",
            show_default="--nproc-per-node of the command, or 1",
        ),
    ] = None,
    variable: Annotated[
        str | None,
        typer.Option(
            help="The variable of the environment that tells the command its devices.",
            metavar="NAME",
            show_default="CUDA_VISIBLE_DEVICES and its like, or {devices} in the command",
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Share of its runs that a device spoils, for which it is to be seen.", metavar="Q")
    ] = 0.3,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Have torch take forms that repeat themselves, where it has any.")
    ] = False,
    at_once: Annotated[
        int, typer.Option(help="Groups that run at the same time, on devices of their own.", min=1, metavar="N")
    ] = 1,
) -> Mapping[str, Any]:
    """Run a training command with the same seeds on group after group of devices, compare the bits of its first steps,
    and say which device is in the minority; then swap it with others, as what follows the rank is no device's fault.

    confirmed: a device, or two; excluded: what differs follows the software, or nothing differed in as many runs as
    --rate takes. Exit code 0: one of these; 3: undecided.

    Example: trueline trial vote --devices 0-7 -- torchrun --nproc-per-node 2 train.py
    """
    own = {"devices": devices, "group": group, "variable": variable, "rate": rate}
    return {**own, "deterministic": deterministic, "at_once": at_once}
