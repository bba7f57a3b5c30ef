"""Comparison of optimizer states between ranks whose weights drifted apart.

States remember gradients and updates, and no weights: replicas that reduce their gradients keep equal states also after
something else wrote other weights on one of them. Where states differed while weights were still equal, the next update
had to differ. K elements of one slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD, PARAM, TOLERANCE, UPDATE_RULES, Array
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

StateRelation = Literal["states-equal", "states-apart"]

_PARALLEL = 5e-4
"""The least 1 - cosine of gradients of 16 elements that are not one gradient times a factor: those of other elements
come as near with a probability below 1e-24. Copies whose weights have just parted are nearer."""

_MIN_ELEMENTS = 16
"""Elements of a sample from which on its direction is no chance."""

_MIN_SCALING = 0.05
"""Distance from 1 from which on a factor is reported, and up to which factors of several samples are one."""

_MIN_MEMORY = 0.5
"""The least share of a difference between states that must be left in them, for equal states to say that none was."""


def compare_states(
    run: Run, names: Collection[str], equal_at: int, different_at: int
) -> tuple[StateRelation, int] | None:
    """Relation of optimizer states of the parameters ``names`` between ranks, and its step: ``states-apart`` where they
    differed while all weights were equal (up to ``equal_at``), ``states-equal`` where they are bitwise equal in
    elements whose weights differ by more than updates round (from ``different_at`` on). None where no samples tell.
    """
    try:
        slices = sampled_updates(run).slices
    except CannotTell:
        return None
    by_elements: defaultdict[tuple[int, str, int, int], list[Slice]] = defaultdict(list)
    for sample in slices:
        if sample.name in names and sample.law in UPDATE_RULES:
            by_elements[sample.step, sample.name, sample.start, sample.end].append(sample)
    pairs = [_StatePair(a, b) for samples in by_elements.values() for a, b in combinations(samples, 2)]
    for pair in pairs:
        if pair.step <= equal_at and not pair.states_equal:
            return "states-apart", pair.step
    drifted = [pair for pair in pairs if pair.step >= different_at and pair.weights_differ(equal_at)]
    if not drifted or not all(pair.remembers(equal_at) and pair.updates_alike for pair in drifted):
        return None
    return "states-equal", drifted[0].step


@dataclass(frozen=True)
class _StatePair:
    """Samples of the same elements at one step, from two ranks."""

    a: Slice
    b: Slice

    @property
    def step(self) -> int:
        return self.a.step

    @property
    def states_equal(self) -> bool:
        """True where all states are bitwise equal."""
        states_a, states_b = _states(self.a), _states(self.b)
        return states_a.keys() == states_b.keys() and all(
            np.array_equal(states_a[name], states_b[name], equal_nan=True) for name in states_a
        )

    @property
    def updates_alike(self) -> bool:
        """True where both update by equal settings and states, and the states are not all zero."""
        is_filled = any(np.any(values) for values in _states(self.a).values())
        return is_filled and self.a.settings == self.b.settings and self.states_equal

    def weights_differ(self, equal_at: int) -> bool:
        """True where weights differ by more than the updates since ``equal_at`` can have rounded."""
        weights_a, weights_b = self.a.before[PARAM], self.b.before[PARAM]
        magnitude = np.maximum(np.abs(weights_a), np.abs(weights_b))
        rounding = TOLERANCE * self.a.unit * magnitude * (self.step - equal_at)
        return bool(np.any(np.abs(weights_a - weights_b) > rounding))

    def remembers(self, equal_at: int) -> bool:
        """True where both states still have ``_MIN_MEMORY`` of those at the last step with equal weights."""
        num_updates = self.step - equal_at
        return all(_longest_memory(sample) ** num_updates >= _MIN_MEMORY for sample in (self.a, self.b))


@dataclass(frozen=True)
class ScaledGradient:
    """Gradient that the optimizer of ``rank`` received of some elements at ``step``: ``factor`` times that of
    ``reference_rank``, in all of ``num`` samples.
    """

    step: int
    rank: int
    reference_rank: int
    factor: float
    num: int


def find_scaled_gradient(runs: Iterable[Run], ranks: Sequence[int]) -> ScaledGradient | None:
    """First sampled step, in ``runs`` together, at which optimizers of two of ``ranks`` received gradients of the same
    elements that differ by one factor, in two samples or more; None where there is none. Elements of what is cut have
    other gradients on each rank, in no factor.
    """
    grads: defaultdict[int, defaultdict[tuple[str, int, int, int], dict[int, Array]]]
    grads = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        try:
            slices = sampled_updates(run).slices
        except CannotTell:
            return None
        for sample in slices:
            if sample.rank in ranks and GRAD in sample.before and len(sample.before[GRAD]) >= _MIN_ELEMENTS:
                elements = sample.name, sample.optimizer_number, sample.start, sample.end
                grads[sample.step][elements][sample.rank] = sample.before[GRAD]
    reference = ranks[0]
    for step in sorted(grads):
        for rank in ranks[1:]:
            pairs = [
                (grad_of[reference], grad_of[rank])
                for grad_of in grads[step].values()
                if {reference, rank} <= set(grad_of)
            ]
            factors = [factor for pair in pairs if (factor := _parallel_factor(*pair)) is not None]
            median = float(np.median(factors)) if len(factors) > 1 else 1.0
            is_one_factor = all(abs(factor - median) <= _MIN_SCALING * median for factor in factors)
            if abs(median - 1) > _MIN_SCALING and is_one_factor:
                return ScaledGradient(step, rank, reference, median, len(factors))
    return None


def _parallel_factor(reference_grad: Array, grad: Array) -> float | None:
    """Factor between two gradients [K]; None where they do not have one direction."""
    reference_norm, norm = float(np.linalg.norm(reference_grad)), float(np.linalg.norm(grad))
    if not 0 < min(reference_norm, norm) <= max(reference_norm, norm) < np.inf:
        return None
    if float(reference_grad @ grad) < (1 - _PARALLEL) * reference_norm * norm:
        return None
    return norm / reference_norm


def unequal_update_counts(run: Run, names: Collection[str]) -> tuple[Mapping[int, int], int] | None:
    """Updates of these parameters that each rank's optimizer had counted before the first one whose sample several
    ranks left, where these numbers differ, and the step of that; None where they agree, or are not known.
    """
    try:
        slices = sampled_updates(run).slices
    except CannotTell:
        return None
    counts: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for sample in slices:
        if sample.name in names and "step" in sample.numbers_before:
            counts[sample.step][sample.rank] = int(sample.numbers_before["step"])
    first = min((step for step, by_rank in counts.items() if len(by_rank) > 1), default=None)
    if first is None or len(set(counts[first].values())) == 1:
        return None
    return counts[first], first


def _states(sample: Slice) -> Mapping[str, Array]:
    return {name: values for name, values in sample.before.items() if name not in (PARAM, GRAD)}


def _longest_memory(sample: Slice) -> float:
    """Largest share of itself that an average of the optimizer keeps in an update."""
    betas: Sequence[float] = sample.settings.get("betas") or ()
    return max([*betas, sample.settings.get("momentum") or 0.0, sample.settings.get("alpha") or 0.0])
