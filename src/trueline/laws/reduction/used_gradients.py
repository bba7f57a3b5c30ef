"""What the optimizer of each replica made of the reduced gradient, where replicas received different ones."""

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
"""Relative spread of a norm over steps below which it is the same: a gradient's own varies by per cents."""
_MIN_STEPS = 3


@dataclass(frozen=True)
class Uses:
    """How the versions that replicas received differ: ``factors`` by rank against the reduced gradient at the first
    step, empty where one is no multiple of it; ``norm`` is what clipping left at every step.
    """

    use: Use
    factors: dict[int, float]
    norm: float | None = None

    @property
    def clause(self) -> str:
        """What follows the claim that replicas received different versions, "" where nothing is known."""
        if not self.factors:
            return ""
        if self.use == "dropped":
            none = ranks_text([rank for rank, factor in self.factors.items() if not factor])
            return f" The optimizer of {none} received no gradient, or zeros."
        each = listed([f"{factor:.3g} on rank {rank}" for rank, factor in list(self.factors.items())[:4]])
        why = {
            "clipped": f", and its norm there is {self.norm or 0:.3g} at every step, as clipping leaves it",
            "clipped-by-own-norm": ", as clipping by each rank's own norm before the reduction makes them",
            "loss-scale": ": powers of two apart, as different loss scales are",
        }.get(self.use, "")
        return f" They are the reduced gradient times {each}{why}."


def uses_of(reductions: Reductions, factor: Floats, shape: Floats, floor: Floats, times: Sequence[int]) -> Uses:
    """Of ``factor`` and what is left ``shape`` when it is taken out, and the ``floor`` of that, [T, N, G] each, at the
    positions ``times`` in T.
    """
    norms_TN = _norms(reductions, "used_param_norms", times)
    dropped_TN = (norms_TN == 0) | (reductions.backward_TN & ~reductions.used_TN)[list(times)]
    if np.any(dropped_TN):
        first = dropped_TN[int(np.argmax(any_over(dropped_TN, 1)))]
        return Uses("dropped", dict(zip(reductions.ranks, (~first).astype(float).tolist(), strict=True)))
    whole = any_over(~np.isnan(factor[times]), 2).all(axis=1)  # factors are measured at some of the steps
    seen = np.asarray(times)[whole]
    if not len(seen):
        return Uses("other", {})
    factor_TN = np.nanmedian(factor[seen], axis=2)
    with np.errstate(invalid="ignore"):
        same = np.abs(factor[seen] - factor_TN[:, :, None]) <= _CONSTANT * np.abs(factor_TN)[:, :, None]
        plain = shape[seen] <= floor[seen]
    if not np.all((same & plain) | np.isnan(factor[seen])) or np.all(
        np.ptp(factor_TN, axis=1) <= _CONSTANT * factor_TN.max(axis=1)
    ):
        return Uses("other", {})
    factors = dict(zip(reductions.ranks, factor_TN[0].tolist(), strict=True))
    norms_TN, own_TN = norms_TN[whole], _norms(reductions, "param_grad_norms", seen)
    ratios = [math.log2(each / factor_TN[0, 0]) for each in factor_TN[0] if each / factor_TN[0, 0] > 0]
    for n in range(len(reductions.ranks)):
        if np.any(factor_TN[:, n] < 1 - _CONSTANT) and _constant(norms_TN[:, n]):
            return Uses("clipped", factors, float(norms_TN[:, n].mean()))
    if len(ratios) == len(reductions.ranks) and all(abs(each - round(each)) < 1e-4 for each in ratios) and any(ratios):
        return Uses("loss-scale", factors)
    if _constant((factor_TN * own_TN).ravel()):
        return Uses("clipped-by-own-norm", factors)
    return Uses("scaled", factors)


def clipped_apart(factor_TNG: Floats) -> bool:
    """Whether factors of shards are as clipping by each rank's own norm makes them: one for all groups of a rank, not
    above 1, and another at each step, on several ranks.
    """
    some_TN = any_over(~np.isnan(factor_TNG), 2)
    whole_T = ~any_over(~some_TN, 1)
    if np.count_nonzero(whole_T) < _MIN_STEPS:
        return False
    factor_TNG = factor_TNG[whole_T]
    low_TN, high_TN = np.nanmin(factor_TNG, axis=2), np.nanmax(factor_TNG, axis=2)
    changes_N = np.ptp(high_TN, axis=0) > _CONSTANT * high_TN.max(axis=0)
    one = high_TN - low_TN <= _CONSTANT * high_TN
    return bool(np.all(one & (low_TN > 0) & (high_TN <= 1 + _CONSTANT)) and np.count_nonzero(changes_N) > 1)


def _norms(reductions: Reductions, column: str, times: Sequence[int] | Ints) -> Floats:
    """[T, N] norm of the whole gradient at the positions ``times``; 0 where there was none, NaN where unmeasured."""
    norms = reductions.params(column)[list(times)]
    total = np.sqrt(np.nansum(np.maximum(norms, 0.0) ** 2, axis=2))
    return np.where(np.isnan(norms).all(axis=2), np.nan, total)


def _constant(values: Floats) -> bool:
    """Whether all are one number, beyond chance: there must be some of them."""
    return len(values) >= _MIN_STEPS and bool(np.ptp(values) <= _CONSTANT * values.mean() and values.mean() > 0)
