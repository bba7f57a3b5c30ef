"""Results of a reduction that are not the mean of what went in. Letters: T steps, N workers, G parameter groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trueline.laws.reduction.mismatch import Details, Mismatch, factor_kinds, on_all_workers
from trueline.laws.reduction.reduction import Reductions


@dataclass(frozen=True)
class Scaled(Mismatch):
    """The result is the mean times a factor."""

    kind: ClassVar = "scaled"
    claim: ClassVar = "is the mean of the workers' gradients times another factor than 1"
    unit: ClassVar = "times the mean of the workers' gradients"

    def details(self, reductions: Reductions, rows: Sequence[int], factor: float) -> Details:
        """Relation of the factor to the number of ranks."""
        return Details(kinds=factor_kinds(factor, len(reductions.ranks)))


@dataclass(frozen=True)
class NotTheMean(Mismatch):
    """The result is no multiple of the mean either."""

    kind: ClassVar = "not-the-mean"
    claim: ClassVar = "is not the mean of the workers' gradients"
    unit: ClassVar = "|reduced - mean| over the mean norm of the workers' gradients"


def find_result_mismatches(reductions: Reductions) -> list[Mismatch]:
    """Cells in which the result of the reduction is not the mean; none by hand or through a lossy hook, where other
    results are legal.
    """
    if reductions.by_hand or any(env.reduce_lossy for env in reductions.envs):
        return []
    residual, floor = reductions.residual, reductions.groups("group_reduce_floor")
    factor = reductions.groups("group_reduce_factor")
    beyond, everywhere = reductions.beyond_floor, on_all_workers(reductions.beyond_floor)
    scaled = beyond & (reductions.groups("group_reduce_shape_residual") <= floor) & everywhere
    reduction_known = all(env.reduce_known for env in reductions.envs)
    certain = reductions.used_apart[:, None, :] | ~everywhere | reduction_known
    coarse = residual > _bfloat16_floor(reductions)  # a hook of the user's own may send gradients in bfloat16
    return [
        Scaled(scaled, factor, np.ones_like(factor)),
        NotTheMean(beyond & ~scaled & certain, residual, floor),
        NotTheMean(beyond & ~scaled & ~certain & coarse, residual, floor, severity="warning"),
    ]


def returned_the_mean(reductions: Reductions, rows: Sequence[int]) -> bool:
    """True where the framework's reduction was seen at some of ``rows``, and returned the mean there."""
    residual = reductions.groups("group_reduce_residual")[rows]
    measured, floor = ~np.isnan(residual), reductions.groups("group_reduce_floor")[rows]
    is_mean = np.all(residual[measured] <= floor[measured])
    return not reductions.by_hand and bool(measured.any()) and bool(is_mean)


def _bfloat16_floor(reductions: Reductions) -> float:
    """How far sending gradients in bfloat16 can take a mean: gamma = n u / (1 - n u) for n = N + 2 roundings, u = 2^-8.

    Higham, Accuracy and Stability, 2nd ed., section 4.2; stretched by the sketch as the recorded floors are.
    """
    rounding = (len(reductions.ranks) + 2) * 2.0**-8
    stretch = 1 + 8 * math.sqrt(2 / max(reductions.env.sketch_length, 1))
    return rounding / (1 - rounding) * stretch if rounding < 1 else math.inf
