"""The column of the workers table that this law measures, and what one row of it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "replayed",
        "string",
        "",
        "At the steps that the plan's `replay` names, JSON of `Replayed`: whether the forward pass of the step and two "
        "more of the same batch, and two backward passes, gave the same bits, and whether one after the update did.",
    ),
)

Odd = Literal["", "training", "first", "second", "all"]
"""Which of three passes alone has other bits: that of the training, the first or second after it, or no two agree."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Of one step of one rank. ``doubt`` says in words why nothing was done again, '' where it was.

    ``values`` are the outputs of modules without parts that were compared over three passes, ``forward`` the first
    of them whose bits differ, '' for none, and ``odd`` the pass that has others there. ``gradients`` are parameters
    whose gradient was compared over two passes, ``backward`` the first that differs in the order of the backward
    pass. ``changed`` of ``parameters`` are those that the update changed, as the format of the computation sees
    them, of which ``trained`` have a gradient that is not zero, where gradients were looked at; ``outputs`` is the
    number of elements that the model returns, and ``reads`` whether any of their bits differ after the update; None
    where that was not looked at. The batch of rank ``neighbour`` was run here too, -1 for none, and
    ``neighbour_differs`` is the first value that is not as that rank has it.
    """

    doubt: str = ""
    values: int = 0
    forward: str = ""
    odd: Odd = ""
    gradients: int = 0
    backward: str = ""
    parameters: int = 0
    changed: int = 0
    trained: int = 0
    outputs: int = 0
    reads: bool | None = None
    device: str = ""
    neighbour: int = -1
    neighbour_differs: str = ""

    def to_json(self) -> str:
        """The text of the column."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Replayed:
        """What ``to_json`` was made from."""
        return cls(**dict[str, Any](json.loads(text)))


def odd_one(training: Sequence[int], first: Sequence[int], second: Sequence[int]) -> tuple[int, Odd]:
    """(place of the first digest that is not the same in all three, which of the three is the odd one); (-1, '') where
    all are equal.
    """
    for place, (a, b, c) in enumerate(zip(training, first, second, strict=True)):
        if a == b == c:
            continue
        if b == c:
            return place, "training"
        return place, "first" if a == c else "second" if a == b else "all"
    return -1, ""
