"""Where the losses and the learning rates of two Runs part, as both recorded them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from trueline.schema.text.words import listed
from trueline.store.reader import Run

_LOSS_RTOL = 1e-5
_RATE_RTOL = 1e-6
"""Rates are computed on the host in float64; a scheduler that is written otherwise rounds in the last digits."""
_MIN_STEPS = 2
"""Steps from which on equal losses also say that updates were the same."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first step at which two curves differ, and their values there."""

    step: int
    run: float
    ref: float


@dataclass(frozen=True, slots=True)
class Curves:
    """``began`` says when mean losses part: "at the first loss", "later", "never", or "" where that is not known.
    ``loss`` and ``rate`` are where they do, ``steps`` counts the steps of which both have a loss, and ``equal`` says
    whether all of these losses are the same to the last bit.
    """

    began: str = ""
    steps: int = 0
    equal: bool = False
    loss: Part | None = None
    rate: Part | None = None

    @property
    def as_if_same(self) -> bool:
        """Whether nothing that differs can have changed the losses, or an update before the last of them."""
        return self.equal and self.steps >= _MIN_STEPS

    @property
    def line(self) -> str:
        """Where they part, as the start of a sentence; "" where they do not."""
        named = (("losses", self.loss), ("learning rates", self.rate))
        parts = [
            f"the {name} part at step {part.step:,} ({part.run:.6g}, and {part.ref:.6g} in the reference)"
            for name, part in named
            if part is not None
        ]
        return listed(parts)


def curves_of(one: Run | None, other: Run | None) -> Curves:
    """Where the curves of two Runs part; of jobs of which one is no Run nothing is known."""
    if one is None or other is None:
        return Curves()
    losses = [_losses(run) for run in (one, other)]
    common = sorted(losses[0].keys() & losses[1].keys())
    sides = [(step, losses[0][step], losses[1][step]) for step in common]
    loss = _part(sides, _LOSS_RTOL)
    parted = "never" if loss is None else "at the first loss" if loss.step == common[0] else "later"
    began = parted if common else ""
    equal = bool(common) and _part(sides, 0.0) is None
    return Curves(began, len(common), equal, loss, _rates_part(one, other))


def _losses(run: Run) -> dict[int, float]:
    """The mean loss of the ranks by step."""
    losses_TN, measured_TN = run.pivot("loss")
    whole = np.flatnonzero(measured_TN.any(axis=1))
    return {int(run.steps[t]): float(cast(Any, np.mean(losses_TN[t][measured_TN[t]]))) for t in whole}


def _rates_part(one: Run, other: Run) -> Part | None:
    """Of the first group of parameters whose rates differ, at the first step at which any do."""
    sides = [_rates(run) for run in (one, other)]
    for step in sorted(sides[0].keys() & sides[1].keys()):
        for mine, theirs in zip(sides[0][step], sides[1][step], strict=False):
            if (part := _part([(step, float(mine), float(theirs))], _RATE_RTOL)) is not None:
                return part
    return None


def _rates(run: Run) -> Mapping[int, Any]:
    """The rates of the groups of parameters on the first rank, by step."""
    return {step: rates for (step, _), rates in run.lists("lr", ranks=run.ranks[:1]).items()}


def _part(sides: list[tuple[int, float, float]], rtol: float) -> Part | None:
    for step, mine, theirs in sides:
        alike = math.isnan(mine) and math.isnan(theirs)
        if not alike and not math.isclose(mine, theirs, rel_tol=rtol):
            return Part(step, mine, theirs)
    return None
