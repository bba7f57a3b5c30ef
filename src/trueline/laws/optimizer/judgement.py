"""Sampled updates compared with what the optimizer declares: by how much each state and each parameter is off.

K elements of one slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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
    updates = tuple(update for update in judge_updates(sampled.slices) if update is not None)
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


def judge_updates(samples: Sequence[Slice]) -> list[JudgedUpdate | None]:
    """Compare slices with the law of their optimizer; None where that law is not known, or lacks what it needs."""
    judged: list[JudgedUpdate | None] = [None] * len(samples)
    # Laws are by element: slices with the same numbers beside them are one long slice, which takes a tenth of the time.
    alike: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.law in UPDATE_RULES and PARAM in sample.after:
            alike.setdefault(_numbers_beside(sample) if _has_one_length(sample) else index, []).append(index)
    for indices in alike.values():
        for index, update in zip(indices, _judge_alike([samples[index] for index in indices]), strict=True):
            judged[index] = update
    return judged


def _has_one_length(sample: Slice) -> bool:
    num = len(sample.before[PARAM])
    return all(len(values) == num for values in (*sample.before.values(), *sample.after.values()))


def _numbers_beside(sample: Slice) -> tuple[object, ...]:
    """All that a law reads of a slice but for its elements, and what those are of."""
    names = (tuple(sample.before), tuple(sample.after), tuple(sample.numbers_before))
    has_effect = sample.has_gradient and not sample.skipped
    numbers = tuple(sample.numbers_after.items())
    return sample.law, repr(sample.settings), has_effect, names, numbers, tuple(sample.dtypes.items())


def _judge_alike(samples: Sequence[Slice]) -> Sequence[JudgedUpdate | None]:
    first = samples[0]
    if not finite_numbers(first.settings, *_NUMBERS):
        return [None] * len(samples)
    if first.skipped or not first.has_gradient:
        return [_judge_skipped_update(sample) for sample in samples]
    if GRAD not in first.before:
        return [None] * len(samples)
    step = first.numbers_after.get("step", 1.0)
    lengths = [len(sample.before[PARAM]) for sample in samples]
    # Numbers that hold for a whole parameter are repeated for each of its elements.
    before = {
        name: _repeated([sample.numbers_before[name] for sample in samples], lengths) for name in first.numbers_before
    }
    after = {
        name: _repeated([sample.numbers_after[name] for sample in samples], lengths) for name in first.numbers_after
    }
    before |= {name: np.concatenate([sample.before[name] for sample in samples]) for name in first.before}
    after |= {name: np.concatenate([sample.after[name] for sample in samples]) for name in first.after}
    decoupled = first.law == "AdamW" or bool(first.settings.get("decoupled_weight_decay"))
    settings = {**first.settings, "decoupled_weight_decay": decoupled}
    try:
        with np.errstate(all="ignore"):
            predicted = UPDATE_RULES[first.law](UpdateInputs(settings, before, after, step, first.unit))
    except (KeyError, TypeError, ZeroDivisionError, OverflowError):
        return [None] * len(samples)  # settings or states that this class does not have
    values = {name: of_name.value for name, of_name in predicted.items()}
    excess = _excesses(first, predicted, after)
    ends = [*itertools.accumulate(lengths)]
    return [
        JudgedUpdate(
            sample,
            {name: of_name[end - length : end] for name, of_name in excess.items()},
            {name: of_name[end - length : end] for name, of_name in values.items()},
            "step" not in sample.numbers_after or _counts_one(sample.numbers_before.get("step", 0.0), step),
        )
        for sample, length, end in zip(samples, lengths, ends, strict=True)
    ]


def _repeated(numbers: Sequence[float], times: Sequence[int]) -> Array:
    return np.repeat(np.asarray(numbers, dtype=np.float64), times)


def _counts_one(before: float, after: float) -> bool:
    return after == before + 1 or before >= _LARGEST_COUNT


def _judge_skipped_update(sample: Slice) -> JudgedUpdate:
    """Without a gradient, and where a scaler says so, nothing may change."""
    predicted = {name: Prediction(value, np.zeros_like(value)) for name, value in sample.before.items() if name != GRAD}
    counts_right = sample.numbers_after.get("step") == sample.numbers_before.get("step")
    counts_right |= "step" not in sample.numbers_before
    values = {name: of_name.value for name, of_name in predicted.items()}
    return JudgedUpdate(sample, _excesses(sample, predicted, sample.after), values, counts_right)


def _excesses(sample: Slice, predicted: Mapping[str, Prediction], after: Mapping[str, Array]) -> dict[str, Array]:
    """By name, of all that formats of ``sample`` hold."""
    return {
        name: values.excess(after[name], sample.unit, sample.tiny(name))
        for name, values in predicted.items()
        if name in after
    }
