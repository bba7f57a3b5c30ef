"""Long series made short enough to draw, with every spike kept, and many ranks made few enough to read.

Letters: T steps, N ranks, B bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 240
"""Bins a series is cut into once it has more than ``2 * MAX_BINS`` steps: about one for every two pixels drawn."""
MAX_LINES = 16
"""Ranks that are drawn one by one; above, their spread is drawn as a ribbon."""
MAX_SINGLED_OUT = 4
"""Ranks that are drawn in colour where there are too many to colour all."""
_STANDS_OUT = 2.0
_SPIKES_OUT = 4.0
"""How many times the typical rank's mean, or largest, distance from the median makes a rank worth drawing by itself."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity over steps: ``values_TN`` with NaN and inf as values, ``measured_TN`` False where there is none."""

    steps_T: NDArray[np.int64]
    values_TN: Floats
    measured_TN: NDArray[np.bool_]
    ranks: tuple[int, ...]

    def measured_only(self) -> Series:
        """The steps at which at least one rank measured the quantity."""
        keep_T = self.measured_TN.any(axis=1)
        return Series(self.steps_T[keep_T], self.values_TN[keep_T], self.measured_TN[keep_T], self.ranks)

    def finite(self) -> Floats:
        """The values [T, N], NaN where they are not finite or not measured."""
        return np.where(self.measured_TN & np.isfinite(self.values_TN), self.values_TN, np.nan)


@dataclass(frozen=True, slots=True)
class Bins:
    """A Series in B bins of consecutive measured steps: smallest, mean and largest finite value of each.

    All three are NaN where a bin has no finite value; ``nonfinite_BN`` says that it has a NaN or inf.
    """

    first_B: NDArray[np.int64]
    last_B: NDArray[np.int64]
    lo_BN: Floats
    mean_BN: Floats
    hi_BN: Floats
    nonfinite_BN: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spread:
    """How N ranks lie at each step: extremes and the rank that holds each, quartiles, median; NaN: none finite."""

    lowest_T: Floats
    lower_T: Floats
    median_T: Floats
    upper_T: Floats
    highest_T: Floats
    lowest_rank_T: NDArray[np.int64]
    highest_rank_T: NDArray[np.int64]


def bin_starts(num_steps: int, max_bins: int = MAX_BINS) -> NDArray[np.intp]:
    """Index of the first step of each bin: every step its own up to ``2 * max_bins`` steps, else ``max_bins`` bins."""
    if num_steps <= 2 * max_bins:
        return np.arange(num_steps)
    return np.unique(np.linspace(0, num_steps, max_bins + 1).astype(np.intp)[:-1])


def binned(series: Series, max_bins: int = MAX_BINS) -> Bins:
    """The measured steps of ``series`` in at most ``2 * max_bins`` bins."""
    measured = series.measured_only()
    if measured.steps_T.size == 0:
        none = np.empty((0, len(series.ranks)))
        return Bins(measured.steps_T, measured.steps_T, none, none, none, none.astype(bool))
    starts_B = bin_starts(measured.steps_T.size, max_bins)
    ends_B = np.append(starts_B[1:], measured.steps_T.size) - 1
    finite_TN = measured.finite()
    return Bins(
        measured.steps_T[starts_B],
        measured.steps_T[ends_B],
        np.fmin.reduceat(finite_TN, starts_B, axis=0),
        _means(finite_TN, starts_B),
        np.fmax.reduceat(finite_TN, starts_B, axis=0),
        np.logical_or.reduceat(measured.measured_TN & ~np.isfinite(measured.values_TN), starts_B, axis=0),
    )


def _means(finite_TN: Floats, starts_B: NDArray[np.intp]) -> Floats:
    count_BN = np.add.reduceat(np.isfinite(finite_TN).astype(np.int64), starts_B, axis=0)
    total_BN = np.add.reduceat(np.nan_to_num(finite_TN), starts_B, axis=0)
    return np.where(count_BN > 0, total_BN / np.maximum(count_BN, 1), np.nan)


def spread(series: Series) -> Spread:
    """Extremes, quartiles (nearest rank, no interpolation) and median over the ranks at each step of ``series``."""
    finite_TN = series.finite()
    order_TN = np.argsort(finite_TN, axis=1)
    sorted_TN = np.take_along_axis(finite_TN, order_TN, axis=1)
    count_T = np.isfinite(finite_TN).sum(axis=1)
    last_T = np.maximum(count_T - 1, 0)
    ranks_N = np.array(series.ranks, dtype=np.int64)

    def at(index_T: NDArray[np.int64]) -> Floats:
        return np.take_along_axis(sorted_TN, index_T[:, None], axis=1)[:, 0]

    def holder(index_T: NDArray[np.int64]) -> NDArray[np.int64]:
        return ranks_N[np.take_along_axis(order_TN, index_T[:, None], axis=1)[:, 0]]

    return Spread(
        lowest_T=at(np.zeros_like(last_T)),
        lower_T=at(np.rint(last_T * 0.25).astype(np.int64)),
        median_T=at(np.rint(last_T * 0.5).astype(np.int64)),
        upper_T=at(np.rint(last_T * 0.75).astype(np.int64)),
        highest_T=at(last_T),
        lowest_rank_T=holder(np.zeros_like(last_T)),
        highest_rank_T=holder(last_T),
    )


def singled_out(series: Series, named: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks worth a colour of their own: those ``named`` first, then those that lie farthest from the median.

    Distance is |value − median| over the interquartile range of the step; its mean over steps counts, or its largest
    value, so that one spike is not lost. At most ``MAX_SINGLED_OUT``. This chooses what is drawn; it judges nothing.
    """
    chosen = [rank for rank in named if rank in series.ranks][:MAX_SINGLED_OUT]
    if series.steps_T.size == 0:
        return tuple(chosen)
    over = spread(series)
    width_T = np.where(over.upper_T > over.lower_T, over.upper_T - over.lower_T, np.nan)
    away_TN = np.abs(series.finite() - over.median_T[:, None]) / width_T[:, None]
    seen_TN = np.where(np.isfinite(away_TN), away_TN, 0.0)
    mean_N = seen_TN.sum(axis=0) / np.maximum(np.isfinite(away_TN).sum(axis=0), 1)
    score_N = np.maximum(_typical(mean_N) / _STANDS_OUT, _typical(seen_TN.max(axis=0)) / _SPIKES_OUT)
    for index in np.argsort(-score_N, kind="stable"):
        if len(chosen) >= MAX_SINGLED_OUT or score_N[index] <= 1.0:
            break
        if series.ranks[index] not in chosen:
            chosen.append(series.ranks[index])
    return tuple(chosen)


def _typical(values_N: Floats) -> Floats:
    """Each value as a multiple of the median one; zeros where that is zero."""
    middle = float(np.median(values_N))
    return values_N / middle if middle > 0 else np.zeros_like(values_N)
