"""`trueline trial repeat`: which operation does not repeat itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the job does not repeat itself",
    "excluded": "the job repeats itself",
    "undecided": "whether the job repeats itself cannot be told",
}


@verb("repeat", _MEANS)
def command(
    again: Annotated[
        int, typer.Option(help="How many times it, or with --in-place each operation, is run again.", min=1)
    ] = 3,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Run it once, and call each operation again where it is.")
    ] = False,
) -> Mapping[str, Any]:
    """Run a training command several times with the same seeds, record its first steps with fingerprints, and name the
    first call that makes something else of the same inputs. With --in-place run it once, call each operation of its
    first steps several times on copies of its inputs, and name all that do not return the same bits, and how often.

    confirmed: there is one, or something differs that no recorded call made; excluded: all bits are the same. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial repeat -- torchrun --nproc-per-node 2 train.py
    """
    return {"again": again, "in_place": in_place}
