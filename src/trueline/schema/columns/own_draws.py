"""What the column ``own_draws`` holds, for who writes it and who reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class OwnDraw:
    """Random numbers of a ``torch.Generator`` that is not torch's own: the operation, the shape of what it fills, where
    the script called it (file and line), a uint64 digest of the generator's state before, and whether the first
    dimension has the rows of a batch that the model read in the step, two or more.
    """

    operation: str
    shape: tuple[int, ...]
    called_at: str
    state: int
    of_rows: bool


def draws_text(draws: Sequence[OwnDraw]) -> str:
    """The string of the column."""
    return json.dumps([astuple(draw) for draw in draws])


def own_draws(text: str) -> tuple[OwnDraw, ...]:
    """Of one row of the column."""
    return tuple(
        OwnDraw(str(operation), tuple(shape), str(at), int(state), bool(of_rows))
        for operation, shape, at, state, of_rows in json.loads(text)
    )
