"""Sampled updates compared with what the optimizer declares: by how much each state and each parameter is off.

K elements of one slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trueline.judge.series.sampled_updates import Slice, finite_numbers, sampled_updates
from trueline.judge.series.update_rules import GRAD, LAWS, PARAM, TOLERANCE, Array, Before, Predicted
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

_NUMBERS = ("betas", "lr", "eps", "weight_decay", "momentum", "dampening", "alpha", "lr_decay", "momentum_decay")
"""Settings that laws compute with."""

_ENDS = 2.0**24
"""From here on a count in float32 stays where it is."""


@dataclass(frozen=True)
class Judged:
    """A slice whose update was predicted: ``excess`` [K] of the parameter and of each state, over what rounding may
    explain (more than 1: it cannot), and ``predicted`` values. ``counted`` is whether the count of updates went up as
    it should.
    """

    of: Slice
    excess: Mapping[str, Array]
    predicted: Mapping[str, Array]
    counted: bool

    @property
    def move(self) -> Array:
        """[K] by how much the parameter should have moved."""
        return self.predicted[PARAM] - self.of.before[PARAM]

    @property
    def still(self) -> bool:
        """Whether no element moved, though rounding would have let one."""
        return bool((self.of.after[PARAM] == self.of.before[PARAM]).all()) and bool(np.any(self.excess[PARAM] > 1))


@memoized
def judged_updates(run: Run) -> tuple[Judged, ...]:
    """Every slice that can be predicted. Raises ``CannotTell`` where there is none."""
    sampled = sampled_updates(run)
    found = tuple(judged for each in sampled.slices if (judged := judge(each)) is not None)
    if not found:
        known = any(each.law in LAWS for each in sampled.slices)
        names = ", ".join(sorted(sampled.optimizers))
        raise CannotTell(
            f"how {names} updates is not known: laws exist for {', '.join(LAWS)} of torch.optim, with a step that is "
            "torch's own"
            if not known
            else f"no sampled update of {names} could be predicted: parameters and states are not of plain numbers",
            reason="undecidable",
        )
    return found


def judge(of: Slice) -> Judged | None:
    """The slice compared with the law of its optimizer; None where that law is not known, or lacks what it needs."""
    law = LAWS.get(of.law)
    if law is None or PARAM not in of.after or not finite_numbers(of.settings, *_NUMBERS):
        return None
    if of.skipped or not of.has_gradient:
        return _unchanged(of)
    if GRAD not in of.before:
        return None
    step = of.numbers_after.get("step", 1.0)
    broad = {name: np.full_like(of.before[PARAM], value) for name, value in of.numbers_after.items()}
    old = {name: np.full_like(of.before[PARAM], value) for name, value in of.numbers_before.items()}
    decoupled = of.law == "AdamW" or bool(of.settings.get("decoupled_weight_decay"))
    settings = {**of.settings, "decoupled_weight_decay": decoupled}
    try:
        with np.errstate(all="ignore"):
            predicted = law(Before(settings, {**old, **of.before}, {**broad, **of.after}, step, of.unit))
    except (KeyError, TypeError, ZeroDivisionError, OverflowError):
        return None  # settings or states that this class does not have
    counted = "step" not in of.numbers_after or _counted(of.numbers_before.get("step", 0.0), step)
    return _judged(of, predicted, {**broad, **of.after}, counted=counted)


def _counted(before: float, after: float) -> bool:
    return after == before + 1 or before >= _ENDS


def _unchanged(of: Slice) -> Judged:
    """Without a gradient, and where a scaler says so, nothing may change."""
    predicted = {name: Predicted(value, np.zeros_like(value)) for name, value in of.before.items() if name != GRAD}
    counted = of.numbers_after.get("step") == of.numbers_before.get("step")
    return _judged(of, predicted, of.after, counted=counted or "step" not in of.numbers_before)


def _judged(of: Slice, predicted: Mapping[str, Predicted], after: Mapping[str, Array], *, counted: bool) -> Judged:
    excess = {name: law.excess(after[name], of.unit, of.tiny(name)) for name, law in predicted.items() if name in after}
    return Judged(of, excess, {name: law.value for name, law in predicted.items()}, counted)


def worst_units(judged: Judged, name: str) -> float:
    """The largest error of the values of this name, in units of u times the sum of the magnitudes of their terms."""
    return float(np.max(judged.excess[name], initial=0.0)) * TOLERANCE
