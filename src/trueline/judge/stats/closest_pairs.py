"""Are two workers closer to each other, step after step, than workers are? Bets over all pairs of workers.

If workers are exchangeable, then given the unordered values of a step each pair of workers is equally likely to be the
closest one, the second closest, and so on. For any function f >= 0 of the distance d of a pair

    e_ij = f(d_ij) / mean over all pairs of f(d)

therefore has expectation exactly 1 for every pair, whatever the law of the values (the argument of
``exchangeability``, for pairs instead of workers). Two workers that compute on the same samples are the same up to
dropout, so the bets are on small distances: f = 1/(1 + (d/(s u))**2) with u the median distance of the step and s from
``CLOSENESS``; the heavy tail forgives single steps.

With two workers there is one pair, and nothing to compare it with: all e-values are 1.

Letters: T steps, N workers, C columns, P = N(N - 1)/2 pairs in the order of ``pairs_of``, B bets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trueline.judge.stats.exchangeability import Floats

CLOSENESS: tuple[float, ...] = (0.5, 0.2, 0.05, 0.01)
"""Distances of a duplicated pair that are bet on, in median distances of the step. The best bet on values that differ
by noise of s spreads is about s; exactly equal values win any of them."""

_BLOCK_CELLS = 1 << 20
"""Steps times pairs that are held at a time."""

_NEAREST = 1e-6
"""Least distance of which a logarithm is taken."""

_HIGHEST = 1e200
"""Height at which a detector stops, before it overflows."""


def pairs_of(num_workers: int) -> list[tuple[int, int]]:
    """The P pairs (i, j), i < j, of positions 0...N - 1, in the order of every P axis here."""
    first, second = np.triu_indices(num_workers, k=1)
    return list(zip(first.tolist(), second.tolist(), strict=True))


def distances(values_TNC: Floats) -> Floats:
    """[T, P] how far the two workers of a pair are apart: root mean square over the columns, each in units of the
    step's median distance in that column (1.0 is typical).

    ``values_TNC`` [T, N, C] is NaN where not measured or not to be compared. NaN is the distance of a pair that lacks a
    column which another pair has at that step; a column that no worker has, or in which all are equal, does not
    count.
    """
    num_steps, num_workers, num_columns = values_TNC.shape
    first, second = np.triu_indices(num_workers, k=1)
    total, count = np.zeros((num_steps, len(first))), np.zeros((num_steps, len(first)))
    # Column by column and in place: [T, P, C] at once would not fit in memory with 64 workers.
    for c in range(num_columns):
        column_TN = np.ascontiguousarray(values_TNC[:, :, c])
        gap_TP = column_TN.take(first, axis=1)
        gap_TP -= column_TN.take(second, axis=1)
        np.abs(gap_TP, out=gap_TP)
        unit_T = _typical(gap_TP)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap_TP /= unit_T[:, None]
            np.square(gap_TP, out=gap_TP)
        measured_TP = np.isfinite(gap_TP)
        gap_TP[~measured_TP] = 0.0
        total += gap_TP
        count += measured_TP
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count == count.max(axis=1, keepdims=True, initial=1), np.sqrt(total / count), np.nan)


def nearness(values_TNC: Floats, pairs: Sequence[int]) -> Floats:
    """[T] mean log distance of the pairs ``pairs`` (positions in ``pairs_of``), less that of all pairs of the step: 0
    in the mean if workers are exchangeable. NaN where one of them was not measured.
    """
    return np.concatenate([_nearness(distances(block), pairs) for block in _blocks(values_TNC)])


def log_e_values(distances_TP: Floats) -> Floats:
    """[T, P, B] natural logs of the e-values of every pair and bet; 0 where a pair was not measured, or is the only
    one.
    """
    return np.moveaxis(np.log(_e_values(distances_TP)), 0, -1)


def heights(values_TNC: Floats, *, dependence_ratio: float = 1.0) -> Floats:
    """[P] natural log of the highest that each pair's e-detector (averaged over the bets) is in T steps, at most 460.

    The logs of the e-values are divided by ``dependence_ratio`` (see ``autocorrelation``). In blocks of steps, so that
    64 workers and 10,000 steps fit in memory.
    """
    with np.errstate(divide="ignore"):
        return np.log(states_after(values_TNC, dependence_ratio=dependence_ratio)[-1])


def states_after(values_TNC: Floats, before: Floats | None = None, *, dependence_ratio: float = 1.0) -> Floats:
    """[B + 1, P] each pair's e-detectors after T steps that come after those of ``before`` (None: after none), and the
    highest that their mean has been.
    """
    num_pairs = math.comb(values_TNC.shape[1], 2)
    state = np.zeros((len(CLOSENESS) + 1, num_pairs)) if before is None else before.copy()
    state_BP, best_P = state[:-1], state[-1]  # views: the loop writes through to ``state``
    for block in _blocks(values_TNC):
        e_BTP = _e_values(distances(block))
        if dependence_ratio != 1.0:
            np.power(e_BTP, 1 / dependence_ratio, out=e_BTP)
        for t in range(e_BTP.shape[1]):
            state_BP += 1  # Shiryaev-Roberts: a further start at this step
            state_BP *= e_BTP[:, t]
            np.minimum(state_BP, _HIGHEST, out=state_BP)
            e_BTP[:, t] = state_BP
        np.maximum(best_P, e_BTP.mean(axis=0).max(axis=0, initial=0.0), out=best_P)
    return state


def log_e_of_pairs(values_TNC: Floats, pairs: Sequence[int]) -> Floats:
    """[T, K, B] natural logs of the e-values of K pairs, given by their positions in ``pairs_of``."""
    blocks = [log_e_values(distances(block))[:, list(pairs)] for block in _blocks(values_TNC)]
    return np.concatenate(blocks) if blocks else np.zeros((0, len(pairs), len(CLOSENESS)))


def closeness(values_TNC: Floats, first: int, second: int) -> float:
    """Distance of the two workers over that of each from others, root mean square over the measured columns: about 1 if
    healthy, 0 if always equal, NaN where no column was measured.
    """
    by_column = [_closeness(values_TNC[:, :, c], first, second) for c in range(values_TNC.shape[2])]
    measured = [close for close in by_column if math.isfinite(close)]
    return math.sqrt(sum(close**2 for close in measured) / len(measured)) if measured else math.nan


def _e_values(distances_TP: Floats) -> Floats:
    """[B, T, P]"""
    measured = np.isfinite(distances_TP)
    count = np.count_nonzero(measured, axis=1)[:, None]
    unjudged = ~(measured & (count > 1))
    e_BTP = np.empty((len(CLOSENESS), *distances_TP.shape))  # bets first: each is computed in contiguous memory
    square_TP = np.square(np.where(measured, np.minimum(distances_TP, 1e9), np.inf))
    for b, close in enumerate(CLOSENESS):
        e_TP = e_BTP[b]
        np.divide(square_TP, close**2, out=e_TP)
        e_TP += 1
        np.divide(1, e_TP, out=e_TP)
        with np.errstate(divide="ignore", invalid="ignore"):
            total_T1 = e_TP.sum(axis=1, keepdims=True)
            e_TP *= count
            e_TP /= total_T1
        e_TP[unjudged] = 1.0  # a bet that is not made neither wins nor loses
    return e_BTP


def _blocks(values_TNC: Floats) -> list[Floats]:
    size = max(1, _BLOCK_CELLS // max(math.comb(values_TNC.shape[1], 2), 1))
    return [values_TNC[start : start + size] for start in range(0, len(values_TNC), size)]


def _closeness(values_TN: Floats, first: int, second: int) -> float:
    """``closeness`` in one column.

    The numerator is the median |difference|. The denominator is, for the worker k in the nearer half of the others, the
    smaller median |difference from its own median over time| to either of the pair: taking out what lasts keeps other
    workers that are merely shifted from making the pair look close, and the nearer half those that are merely noisy.
    """
    gap = _steady_median(values_TN[:, first] - values_TN[:, second], persistent=True)
    spreads: list[float] = []
    for k in range(values_TN.shape[1]):
        to_k = [_steady_median(values_TN[:, worker] - values_TN[:, k], persistent=False) for worker in (first, second)]
        if k not in (first, second) and all(math.isfinite(spread) for spread in to_k):
            spreads.append(min(to_k))
    if not spreads or not math.isfinite(gap):
        return math.nan
    typical = sorted(spreads)[(len(spreads) - 1) // 2]
    return gap / typical if typical > 0 else (0.0 if gap == 0 else math.inf)


def _steady_median(gap_T: Floats, *, persistent: bool) -> float:
    gap = gap_T[np.isfinite(gap_T)]
    if not len(gap):
        return math.nan
    return float(np.median(np.abs(gap if persistent else gap - np.median(gap))))


def _nearness(distances_TP: Floats, pairs: Sequence[int]) -> Floats:
    log_TP = np.log(np.maximum(distances_TP, _NEAREST))
    count_T = np.count_nonzero(np.isfinite(log_TP), axis=1)
    mean_T = np.nansum(log_TP, axis=1) / np.maximum(count_T, 1)
    return np.asarray(log_TP[:, list(pairs)].mean(axis=1) - mean_T, dtype=np.float64)


def _typical(gap_TP: Floats) -> Floats:
    """[T] median of the distances of a step; where at least half are 0, the mean; NaN where all are 0."""
    ordered = np.sort(gap_TP, axis=1)
    count = np.count_nonzero(np.isfinite(gap_TP), axis=1)
    middle = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[:, None], axis=1)[:, 0]
    mean = np.nansum(gap_TP, axis=1) / np.maximum(count, 1)
    unit = np.where(middle > 0, middle, mean)
    return np.where((count > 0) & (unit > 0), unit, np.nan)
