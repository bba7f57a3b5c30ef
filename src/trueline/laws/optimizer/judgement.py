"""Sampled updates compared with what the optimizer declares: by how much each state and each parameter is off.

K elements of one slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trueline.judge.series.sampled_updates import Slice, finite_numbers, sampled_updates
from trueline.judge.series.update_rules import GRAD, PARAM, TOLERANCE, UPDATE_RULES, Array, Prediction, UpdateInputs
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

_NUMBERS = ("betas", "lr", "eps", "weight_decay", "momentum", "dampening", "alpha", "lr_decay", "momentum_decay")
"""Settings that laws compute with."""

_LARGEST_COUNT = 2.0**24
"""From here on a count in float32 stays where it is."""


@dataclass(frozen=True)
class JudgedUpdate:
    """A ``sample`` whose update was predicted.

    ``excess`` [K] of the parameter and of each state is their error over what rounding may explain (more than 1: it
    cannot), ``predicted`` [K] are their values. ``counts_right`` is whether the count of updates went up as it should.
    """

    sample: Slice
    excess: Mapping[str, Array]
    predicted: Mapping[str, Array]
    counts_right: bool

    @property
    def move(self) -> Array:
        """[K] by how much the parameter should have moved."""
        return self.predicted[PARAM] - self.sample.before[PARAM]

    @property
    def is_still(self) -> bool:
        """True if no element moved, though rounding would have let one."""
        unmoved = bool((self.sample.after[PARAM] == self.sample.before[PARAM]).all())
        return unmoved and bool(np.any(self.excess[PARAM] > 1))

    def worst_error(self, name: str) -> float:
        """Largest error of the values of this name, in units of u times the sum of the magnitudes of their terms."""
        return float(np.max(self.excess[name], initial=0.0)) * TOLERANCE


@memoized
def judged_updates(run: Run) -> tuple[JudgedUpdate, ...]:
    """Every slice that can be predicted. Raises ``CannotTell`` where there is none."""
    sampled = sampled_updates(run)
    updates = tuple(update for sample in sampled.slices if (update := judge_update(sample)) is not None)
    if not updates:
        has_law = any(sample.law in UPDATE_RULES for sample in sampled.slices)
        names = ", ".join(sorted(sampled.optimizers))
        raise CannotTell(
            f"how {names} updates is not known: laws exist for {', '.join(UPDATE_RULES)} of torch.optim, with a step "
            "that is torch's own"
            if not has_law
            else f"no sampled update of {names} could be predicted: parameters and states are not of plain numbers",
            reason="undecidable",
        )
    return updates


def judge_update(sample: Slice) -> JudgedUpdate | None:
    """Compare a slice with the law of its optimizer; None where that law is not known, or lacks what it needs."""
    law = UPDATE_RULES.get(sample.law)
    if law is None or PARAM not in sample.after or not finite_numbers(sample.settings, *_NUMBERS):
        return None
    if sample.skipped or not sample.has_gradient:
        return _judge_skipped_update(sample)
    if GRAD not in sample.before:
        return None
    step = sample.numbers_after.get("step", 1.0)
    # Laws are by element: numbers that hold for a whole parameter are repeated for each of its elements.
    before = {name: np.full_like(sample.before[PARAM], value) for name, value in sample.numbers_before.items()}
    after = {name: np.full_like(sample.before[PARAM], value) for name, value in sample.numbers_after.items()}
    after |= sample.after
    decoupled = sample.law == "AdamW" or bool(sample.settings.get("decoupled_weight_decay"))
    settings = {**sample.settings, "decoupled_weight_decay": decoupled}
    try:
        with np.errstate(all="ignore"):
            predicted = law(UpdateInputs(settings, {**before, **sample.before}, after, step, sample.unit))
    except (KeyError, TypeError, ZeroDivisionError, OverflowError):
        return None  # settings or states that this class does not have
    counts_right = "step" not in sample.numbers_after or _counts_one(sample.numbers_before.get("step", 0.0), step)
    return _excesses(sample, predicted, after, counts_right=counts_right)


def _counts_one(before: float, after: float) -> bool:
    return after == before + 1 or before >= _LARGEST_COUNT


def _judge_skipped_update(sample: Slice) -> JudgedUpdate:
    """Without a gradient, and where a scaler says so, nothing may change."""
    predicted = {name: Prediction(value, np.zeros_like(value)) for name, value in sample.before.items() if name != GRAD}
    counts_right = sample.numbers_after.get("step") == sample.numbers_before.get("step")
    return _excesses(sample, predicted, sample.after, counts_right=counts_right or "step" not in sample.numbers_before)


def _excesses(
    sample: Slice, predicted: Mapping[str, Prediction], after: Mapping[str, Array], *, counts_right: bool
) -> JudgedUpdate:
    excess = {
        name: values.excess(after[name], sample.unit, sample.tiny(name))
        for name, values in predicted.items()
        if name in after
    }
    return JudgedUpdate(sample, excess, {name: values.value for name, values in predicted.items()}, counts_right)
