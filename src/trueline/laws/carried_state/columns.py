"""The column of the workers table that this law measures, and what one row of it holds."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "carried_state",
        "string",
        "",
        "At two early sampled steps, JSON of `CarriedState`: tensors with rows for samples that the step before "
        "left, and that the loss of this one is computed from.",
    ),
)


@dataclass(frozen=True, slots=True)
class CarriedState:
    """A tensor of ``shape`` by the name of its attribute or argument; ``is_argument`` of what the model was called
    with and had returned the step before.
    """

    name: str
    shape: tuple[int, ...]
    is_argument: bool


def states_text(states: list[CarriedState]) -> str:
    """The string of the column."""
    return json.dumps([astuple(state) for state in states])


def carried_states(text: str) -> tuple[CarriedState, ...]:
    """Of one row of the column."""
    return tuple(CarriedState(str(name), tuple(shape), bool(is_arg)) for name, shape, is_arg in json.loads(text))
