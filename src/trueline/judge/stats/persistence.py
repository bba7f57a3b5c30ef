"""Do the workers keep their order? Bets that the differences of earlier steps recur at the next one.

If workers are exchangeable at a step given the past, swapping two of them changes nothing, and neither does swapping
any of a set of pairs that have no worker in common: a group of 2**pairs equally likely arrangements. Let m_i be the
mean score of worker i at earlier steps, and the pairs be chosen by it: the highest with the lowest, the second highest
with the second lowest, and so on. With z the scores of this step,

    e = product over pairs (i, j) of  2 / (1 + exp(-(m_i - m_j)(z_i - z_j)))

has expectation exactly 1, since z_i - z_j is as likely as its negative given everything else and 2/(1 + exp(-x)) + 2/(1
+ exp(x)) = 2 (an e-value under a group of symmetries: Koning, arXiv 2310.01153). It is the likelihood ratio of normal
scores with means m against the same with each pair swapped, so it grows where *all* workers differ for good, as with a
data mixture each, even where none is far enough from the others to be an outlier. Samples that are similar inside one
batch (buckets of length, several answers to one prompt) do not break it: workers are exchangeable as wholes.

Letters: T steps, N workers, P pairs, B bets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueline.judge.stats.autocorrelation import INDEPENDENT, Dependence
from trueline.judge.stats.exchangeability import Bools, Floats

HORIZONS: tuple[float, ...] = (10.0, 50.0, 250.0)
"""Steps that the means of the past reach back; each is a bet."""

_PRIOR_STEPS = 1.0
"""Steps of the mean 0 that the past counts besides its own: the best estimate if shifts are about a spread large."""


@dataclass(frozen=True)
class PersistentSpread:
    """``ratio``: the standard deviation between workers, persistent differences included, over what it is without them
    (1.0 if healthy); ``low`` to ``high`` covers it with 95 %. ``std_of_means`` is that of the persistent differences,
    ``noise`` that of a step, both in units of the values.
    """

    ratio: float
    low: float
    high: float
    std_of_means: float
    noise: float


def log_e_values(
    scores_TN: Floats, *, allowance_TN: Floats | float = 0.0, dependence: Dependence = INDEPENDENT
) -> Floats:
    """[T, B] natural logs of the e-values of every step and memory; 0 before there is a past.

    ``scores_TN`` [T, N] are ``exchangeability.scores``, NaN where not measured. ``allowance`` [T, N] is a persistent
    shift in spreads that is no fault: what two workers differ by is brought that much nearer to 0 for both, on the side
    that is bet on, which keeps the expectation at most 1 for shifts up to it. Where workers are autocorrelated
    (``dependence``), the past ends as many steps ago as they are, reaches back V times as far, and logs are
    divided by V.
    """
    allowance = np.broadcast_to(np.asarray(allowance_TN, dtype=np.float64), scores_TN.shape)
    measured_TN = np.isfinite(scores_TN)
    known_TN = np.where(measured_TN, scores_TN, 0.0)
    past_TBN = _past_means(known_TN, measured_TN, dependence)
    logs = [_log_e(past_TBN[:, b], scores_TN, allowance) / dependence.ratio for b in range(len(HORIZONS))]
    return np.stack(logs, axis=1)


def log_e_after(scores_TN: Floats, past_2BN: Floats) -> tuple[Floats, Floats]:
    """``log_e_values`` [T, B] of workers that are not autocorrelated, at steps that come after others, and the past
    behind them: sums of the scores of the steps so far, less what is forgotten of them, and how many these were (zeros
    at first).
    """
    measured_TN = np.isfinite(scores_TN)
    new_T21N = np.stack([np.where(measured_TN, scores_TN, 0.0), measured_TN], axis=1)[:, :, None]
    sums_T2BN = np.empty((len(scores_TN) + 1, *past_2BN.shape))
    sums_T2BN[0] = past_2BN
    for t in range(len(scores_TN)):
        np.multiply(sums_T2BN[t], _keep(INDEPENDENT), out=sums_T2BN[t + 1])
        sums_T2BN[t + 1] += new_T21N[t]
    past_TBN = sums_T2BN[:-1, 0] / (sums_T2BN[:-1, 1] + _PRIOR_STEPS)
    none_TN = np.zeros(scores_TN.shape)
    return np.stack([_log_e(past_TBN[:, b], scores_TN, none_TN) for b in range(len(HORIZONS))], axis=1), sums_T2BN[-1]


def farthest(values_TN: Floats) -> int:
    """The position of the worker whose residuals from the step's median are, in the mean, largest."""
    with np.errstate(invalid="ignore"):
        middle = _means(values_TN - _row_medians(values_TN)[:, None], axis=0)
    return int(np.nanargmax(np.abs(middle))) if np.isfinite(middle).any() else 0


def persistent_spread(values_TN: Floats) -> PersistentSpread | None:
    """The spread of the workers' means over the T steps, and the noise of a step; None for fewer than 3 steps that
    all measured workers share, or without noise.

    Analysis of variance of residuals from the mean of each step: s2 is the variance left after workers' means are
    taken out, v = s2/T its part in a mean, t2 = (variance of the N means) - v, and the ratio sqrt(1 + t2/s2). The means
    are those of these workers, and only the noise in them is uncertain: N - 1 times their variance over v is noncentral
    chi-square, so that the error of t2 has the variance 2 v (v + 2 t2)/(N - 1).
    """
    complete_TN = values_TN[:, np.isfinite(values_TN).any(axis=0)]
    complete_TN = complete_TN[np.isfinite(complete_TN).all(axis=1)]
    num_steps, num_workers = complete_TN.shape
    if num_steps < 3 or num_workers < 2:
        return None
    residual = complete_TN - complete_TN.mean(axis=1, keepdims=True)
    means = residual.mean(axis=0)
    noise2 = float(np.square(residual - means).sum() / ((num_steps - 1) * (num_workers - 1)))
    if noise2 <= 0:
        return None
    in_mean2 = noise2 / num_steps
    persistent2 = max(float(np.square(means).sum() / (num_workers - 1)) - in_mean2, 0.0)
    error = 1.96 * math.sqrt(2 * in_mean2 * (in_mean2 + 2 * persistent2) / (num_workers - 1))

    def ratio(variance: float) -> float:
        return math.sqrt(1 + max(variance, 0.0) / noise2)

    return PersistentSpread(
        ratio=ratio(persistent2),
        low=ratio(persistent2 - error),
        high=ratio(persistent2 + error),
        std_of_means=math.sqrt(persistent2),
        noise=math.sqrt(noise2),
    )


def _past_means(known_TN: Floats, measured_TN: Bools, dependence: Dependence) -> Floats:
    """[T, B, N] the mean score of each worker at the steps before each, less those that it still remembers."""
    keep_B1 = _keep(dependence)
    new_T21N = np.stack([known_TN, measured_TN], axis=1)[:, :, None]
    sums_T2BN = np.zeros((len(known_TN), 2, len(HORIZONS), known_TN.shape[1]))
    # Steps within reach of autocorrelation are no independent past: bets on them would not be fair.
    for t in range(dependence.reach + 1, len(known_TN)):
        np.multiply(sums_T2BN[t - 1], keep_B1, out=sums_T2BN[t])
        sums_T2BN[t] += new_T21N[t - dependence.reach - 1]
    return sums_T2BN[:, 0] / (sums_T2BN[:, 1] + _PRIOR_STEPS * dependence.ratio)


def _keep(dependence: Dependence) -> Floats:
    """[B, 1] the share of the past that is left a step later."""
    return np.array([[math.exp(-1 / (steps * dependence.ratio))] for steps in HORIZONS])


def _log_e(mean_TN: Floats, scores_TN: Floats, allowance_TN: Floats) -> Floats:
    """[T] the logs for one memory: of those measured at a step, pair the highest mean with the lowest, and inwards."""
    measured_TN = np.isfinite(scores_TN)
    # Stable: equal means are paired by position, on every machine alike.
    order_TN = np.argsort(np.where(measured_TN, mean_TN, np.inf), axis=1, kind="stable")
    count_T1 = np.count_nonzero(measured_TN, axis=1)[:, None]
    pair_P = np.arange(scores_TN.shape[1] // 2, dtype=np.int64)
    low_TP = order_TN[:, : len(pair_P)]
    high_TP = np.take_along_axis(order_TN, np.maximum(count_T1 - 1 - pair_P, 0), axis=1)

    mean, score, allowed = (
        (np.take_along_axis(values_TN, high_TP, axis=1), np.take_along_axis(values_TN, low_TP, axis=1))
        for values_TN in (mean_TN, np.where(measured_TN, scores_TN, 0.0), allowance_TN)
    )
    gap_TP = score[0] - score[1] - allowed[0] - allowed[1]
    log_e_TP = math.log(2) - np.logaddexp(0.0, -(mean[0] - mean[1]) * gap_TP)
    return np.asarray(np.where(pair_P < count_T1 // 2, log_e_TP, 0.0).sum(axis=1), dtype=np.float64)


def _means(values: Floats, *, axis: int) -> Floats:
    count = np.count_nonzero(np.isfinite(values), axis=axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, np.nansum(values, axis=axis) / count, np.nan)


def _row_medians(values_TN: Floats) -> Floats:
    medians_T = np.full(len(values_TN), np.nan)
    measured_T = np.isfinite(values_TN).any(axis=1)
    medians_T[measured_T] = np.nanmedian(values_TN[measured_T], axis=1)
    return medians_T
