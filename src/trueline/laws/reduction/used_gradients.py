"""Causes of the different gradients that optimizers of replicas received: dropped, clipped, scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import Floats, Ints, any_over
from trueline.laws.reduction.reduction import Reductions
from trueline.schema.text.words import listed, ranks_text

Use = Literal["dropped", "clipped", "clipped-by-own-norm", "loss-scale", "scaled", "other"]

_CONSTANT = 1e-3
"""Relative spread of a norm over steps below which it is constant: a gradient's own norm varies by per cents."""
_MIN_STEPS = 3


@dataclass(frozen=True)
class Uses:
    """Difference between the gradients that replicas received: ``factors`` by rank against the reduced gradient at the
    first step, empty where one is no multiple of it; ``norm`` is that which clipping left at every step.
    """

    use: Use
    factors: dict[int, float]
    norm: float | None = None

    @property
    def clause(self) -> str:
        """Sentence after the claim that replicas received different versions, "" where nothing is known."""
        if not self.factors:
            return ""
        if self.use == "dropped":
            dropped_ranks = ranks_text([rank for rank, factor in self.factors.items() if not factor])
            return f" The optimizer of {dropped_ranks} received no gradient, or zeros."
        factors = listed([f"{factor:.3g} on rank {rank}" for rank, factor in list(self.factors.items())[:4]])
        why = {
            "clipped": f", and its norm there is {self.norm or 0:.3g} at every step, as clipping leaves it",
            "clipped-by-own-norm": ", as clipping by each rank's own norm before the reduction makes them",
            "loss-scale": ": powers of two apart, as different loss scales are",
        }.get(self.use, "")
        return f" They are the reduced gradient times {factors}{why}."


def explain_uses(reductions: Reductions, rows: Sequence[int]) -> Uses:
    """How the gradients that optimizers received at the steps ``rows`` of T differ from the mean, as far as one factor
    for each rank explains them.
    """
    factor, shape_residual, floor = reductions.used_factor, reductions.used_shape_residual, reductions.common_floor
    norms_TN = _gradient_norms(reductions, "used_param_norms", rows)
    dropped_TN = (norms_TN == 0) | (reductions.backward_TN & ~reductions.used_TN)[list(rows)]
    if np.any(dropped_TN):
        dropped_N = dropped_TN[int(np.argmax(any_over(dropped_TN, 1)))]
        return Uses("dropped", dict(zip(reductions.ranks, (~dropped_N).astype(float).tolist(), strict=True)))
    measured_T = any_over(~np.isnan(factor[rows]), 2).all(axis=1)  # factors are measured at some of the steps
    measured_rows = np.asarray(rows)[measured_T]
    if not len(measured_rows):
        return Uses("other", {})
    factor, shape_residual, floor = factor[measured_rows], shape_residual[measured_rows], floor[measured_rows]
    factor_TN = np.nanmedian(factor, axis=2)
    with np.errstate(invalid="ignore"):
        in_all_groups = np.abs(factor - factor_TN[:, :, None]) <= _CONSTANT * np.abs(factor_TN)[:, :, None]
        only_scaled = shape_residual <= floor
    is_explained = np.all((in_all_groups & only_scaled) | np.isnan(factor))
    if not is_explained or np.all(np.ptp(factor_TN, axis=1) <= _CONSTANT * factor_TN.max(axis=1)):
        return Uses("other", {})
    factors = dict(zip(reductions.ranks, factor_TN[0].tolist(), strict=True))
    norms_TN, local_norms_TN = norms_TN[measured_T], _gradient_norms(reductions, "param_grad_norms", measured_rows)
    ratios = factor_TN[0] / factor_TN[0, 0]
    exponents = [math.log2(ratio) for ratio in ratios if ratio > 0]
    for n in range(len(reductions.ranks)):
        if np.any(factor_TN[:, n] < 1 - _CONSTANT) and _is_constant(norms_TN[:, n]):
            return Uses("clipped", factors, float(norms_TN[:, n].mean()))
    if len(exponents) == len(reductions.ranks) and _are_whole(exponents) and any(exponents):
        return Uses("loss-scale", factors)
    if _is_constant((factor_TN * local_norms_TN).ravel()):
        return Uses("clipped-by-own-norm", factors)
    return Uses("scaled", factors)


def clipped_by_own_norms(factor_TNG: Floats) -> bool:
    """True where factors of shards are as clipping by each rank's own norm makes them: one for all groups of a rank,
    not above 1, and another at each step, on several ranks.
    """
    measured_TN = any_over(~np.isnan(factor_TNG), 2)
    measured_T = ~any_over(~measured_TN, 1)
    if np.count_nonzero(measured_T) < _MIN_STEPS:
        return False
    factor_TNG = factor_TNG[measured_T]
    low_TN, high_TN = np.nanmin(factor_TNG, axis=2), np.nanmax(factor_TNG, axis=2)
    changes_N = np.ptp(high_TN, axis=0) > _CONSTANT * high_TN.max(axis=0)
    equal_in_groups_TN = high_TN - low_TN <= _CONSTANT * high_TN
    clips_TN = equal_in_groups_TN & (low_TN > 0) & (high_TN <= 1 + _CONSTANT)
    # one rank alone whose factor changes is odd for another reason
    return bool(np.all(clips_TN) and np.count_nonzero(changes_N) > 1)


def _gradient_norms(reductions: Reductions, column: str, rows: Sequence[int] | Ints) -> Floats:
    """[T, N] norm of the whole gradient at ``rows``; 0 where there was none, NaN where unmeasured."""
    norms = reductions.params(column)[list(rows)]
    total = np.sqrt(np.nansum(np.maximum(norms, 0.0) ** 2, axis=2))
    return np.where(np.isnan(norms).all(axis=2), np.nan, total)


def _are_whole(numbers: Sequence[float]) -> bool:
    return all(abs(number - round(number)) < 1e-4 for number in numbers)


def _is_constant(values: Floats) -> bool:
    """True where there are enough values, all of them equal: a gradient's own norm varies."""
    return len(values) >= _MIN_STEPS and bool(np.ptp(values) <= _CONSTANT * values.mean() and values.mean() > 0)
