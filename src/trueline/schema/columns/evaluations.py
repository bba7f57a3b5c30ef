"""What the column ``evaluations`` holds, for who writes it and who reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class UntrainedPass:
    """A forward pass in evaluation mode, or one before the first step that no gradient was asked of.

    ``step`` is the one that was open, None before watching began; ``training`` whether the model was in training mode.
    ``drawn``: the state of torch's generator moved; ``draws`` are function and line of each draw that was seen,
    ``drops`` is whether one of them was a mask that drops values, ``dropouts`` names of dropout modules that are on.
    ``changed`` are buffers, or parameters, that it has changed, ``norms`` the weights whose spectral norm was looked
    at, of which ``evaluation_values`` has two numbers each.
    """

    step: int | None
    training: bool
    drawn: bool = False
    draws: tuple[tuple[str, str], ...] = ()
    drops: bool = False
    dropouts: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()


def evaluations_text(passes: Sequence[UntrainedPass]) -> str:
    """The string of the column."""
    return json.dumps([asdict(untrained) for untrained in passes])


def untrained_passes(text: str) -> tuple[UntrainedPass, ...]:
    """Of one row of the column."""
    return tuple(
        UntrainedPass(
            step=load["step"],
            training=bool(load["training"]),
            drawn=bool(load["drawn"]),
            draws=tuple((str(function), str(at)) for function, at in load["draws"]),
            drops=bool(load["drops"]),
            dropouts=tuple(load["dropouts"]),
            changed=tuple(load["changed"]),
            norms=tuple(load["norms"]),
        )
        for load in json.loads(text)
    )
