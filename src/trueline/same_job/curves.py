"""First steps at which the recorded losses and learning rates of two Runs part."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trueline.schema.text.words import listed
from trueline.store.mean_losses import mean_losses
from trueline.store.reader import Run

_LOSS_RTOL = 1e-5
_RATE_RTOL = 1e-6
"""Rates are computed on the host in float64; another formula for one schedule rounds in the last digits."""
_MIN_STEPS = 2
"""Steps from which on equal losses also mean equal updates: the second loss follows the first update."""


@dataclass(frozen=True, slots=True)
class CurvePart:
    """First step at which two curves differ, and their values there."""

    step: int
    run: float
    ref: float


@dataclass(frozen=True, slots=True)
class Curves:
    """Comparison of the curves of two Runs.

    ``began`` is when mean losses part: "at the first loss", "later", "never", or "" where unknown. ``loss`` and
    ``rate`` are the steps at which they do. ``steps`` counts the steps with a loss in both, ``equal`` holds where all
    of these losses are equal to the last bit.
    """

    began: str = ""
    steps: int = 0
    equal: bool = False
    loss: CurvePart | None = None
    rate: CurvePart | None = None

    @property
    def as_if_same(self) -> bool:
        """True where no difference can have changed the losses, or an update before the last of them."""
        return self.equal and self.steps >= _MIN_STEPS

    @property
    def line(self) -> str:
        """Steps at which the curves part, as the start of a sentence; "" for curves that do not."""
        parts_by_name = (("losses", self.loss), ("learning rates", self.rate))
        texts = [
            f"the {name} part at step {part.step:,} ({part.run:.6g}, and {part.ref:.6g} in the reference)"
            for name, part in parts_by_name
            if part is not None
        ]
        return listed(texts)


def compare_curves(run: Run | None, ref: Run | None) -> Curves:
    """Compare the curves of two Runs; with None for a job that is no Run, nothing is known."""
    if run is None or ref is None:
        return Curves()
    losses = [dict(zip(steps.tolist(), means.tolist(), strict=True)) for steps, means in map(mean_losses, (run, ref))]
    common = sorted(losses[0].keys() & losses[1].keys())
    pairs = [(step, losses[0][step], losses[1][step]) for step in common]
    loss = _first_part(pairs, _LOSS_RTOL)
    moment = "never" if loss is None else "at the first loss" if loss.step == common[0] else "later"
    began = moment if common else ""
    equal = bool(common) and _first_part(pairs, 0.0) is None
    return Curves(began, len(common), equal, loss, _first_rate_part(run, ref))


def _first_rate_part(run: Run, ref: Run) -> CurvePart | None:
    """First step at which the rates of a parameter group differ, and the rates of the first such group."""
    first_ranks = (side.lists("lr", ranks=side.ranks[:1]) for side in (run, ref))
    rates = [{step: values for (step, _), values in lists.items()} for lists in first_ranks]
    for step in sorted(rates[0].keys() & rates[1].keys()):
        for run_rate, ref_rate in zip(rates[0][step], rates[1][step], strict=False):
            if (part := _first_part([(step, float(run_rate), float(ref_rate))], _RATE_RTOL)) is not None:
                return part
    return None


def _first_part(pairs: list[tuple[int, float, float]], rtol: float) -> CurvePart | None:
    for step, run_value, ref_value in pairs:
        both_nan = math.isnan(run_value) and math.isnan(ref_value)
        if not both_nan and not math.isclose(run_value, ref_value, rel_tol=rtol):
            return CurvePart(step, run_value, ref_value)
    return None
