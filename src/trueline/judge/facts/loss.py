"""Facts of the loss.

T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trueline.judge.stats.trend import chance_of_fall, num_of_ends
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
from trueline.store.mean_losses import mean_losses
from trueline.store.reader import Run

LEVEL = 0.01
"""A loss fell where an order of its steps that is chance looks as much like a fall at most so often."""
FEWEST = 8
"""Steps from which on that is asked: of 6 in random order, only the falling one, of 720, is so seldom."""

LEAST_OF_COSINES = -2.0
"""Of two views of a sample that are compared both ways; densities of what is continuous may come below it."""


def falls_below_zero(value: Mapping[str, Any]) -> bool:
    """True of a loss that fell, and was below what losses of cosines come to in the end."""
    return value.get("fell") is True and value["last"] < LEAST_OF_COSINES


def sign_to_confirm(value: Mapping[str, Any]) -> str:
    """What is to be confirmed of a loss that falls below 0."""
    return (
        f"the loss fell below 0, from {value['first']:.4g} to {value['last']:.4g}: is a sign missing, or is it meant?"
    )


def loss(run: Run) -> tuple[str, Any]:
    """Mean loss of the first and of the last steps, whether it fell beyond chance, and whether it still does."""
    steps_T, loss_T = mean_losses(run)
    finite_T = np.isfinite(loss_T)
    steps_T, loss_T = steps_T[finite_T], loss_T[finite_T]
    if not len(loss_T):
        raise CannotTell("no loss was seen")
    # Of a short training the first and the last step, of a long one means that single steps do not move.
    num = num_of_ends(len(loss_T))
    first, last = float(loss_T[:num].mean()), float(loss_T[-num:].mean())
    values: dict[str, Any] = {
        "first": first,
        "last": last,
        "steps": num,
        "models": len(run.models) + run.is_further_model,
    }
    of_which = "the first and the last step" if num == 1 else f"means of the first and the last {num} steps"
    text = f"from {first:.4g} to {last:.4g} ({of_which})"
    if len(loss_T) > 1 and np.all(loss_T == loss_T[0]):
        return f"the loss is {first:.4g} at every one of {counted(len(loss_T), 'step')}", values | {
            "fell": False,
            "constant": True,
        }
    if len(loss_T) < FEWEST:
        return f"the loss went {text}", values
    values |= {"fell": chance_of_fall(loss_T) <= LEVEL, "rose": chance_of_fall(-loss_T) <= LEVEL}
    if not values["fell"]:
        return f"the loss {'rose' if values['rose'] else 'did not fall'} beyond chance: {text}", values
    half_T = loss_T[len(loss_T) // 2 :]
    if len(half_T) < FEWEST:
        return f"the loss went {text}", values
    still = chance_of_fall(half_T) <= LEVEL
    since = int(steps_T[len(loss_T) // 2])
    text += "" if still else f"; from step {since} on it did not fall beyond chance"
    return f"the loss went {text}", values | {"level_since": None if still else since}
