"""Autocorrelation of workers: the factor by which evidence must be divided so that it is not overstated.

The bets of ``exchangeability`` are fair if workers are exchangeable at each step given the past. Workers that each read
a document from end to end are not: who was high stays high for a while. With r_j the autocorrelation of a worker's
scores, the variance of a sum of n of them grows as n V, with

    V = 1 + 2 (r_1 + r_2 + ...)

instead of n, as if only one step in V were new. So the logarithms of all e-values are divided by V. For normal scores
that makes the expectation of every product at most 1 again where no partial sum of the r_j exceeds that of all: E
exp((λ S_n - λ² n / 2) / V) <= 1, since S_n has the variance n V at most. It is also the right price: a worker that is
shifted by d spreads then wins d² / (2 V) nats a step, which is all the information that such data hold on it. Where
values stay the same for exactly V steps, dividing by V counts each once. Without autocorrelation V is 1, and nothing
changes.

V is measured on the same Run, and so an estimate, with a standard error added and the sum taken half as large again;
the bound on false alarms is then approximate. Where no autocorrelation is significant it costs nothing. Faults must not
look like autocorrelation: a persistent level of each worker, and one change of it, are removed first, and the
autocorrelation is the median over workers. Of two workers that diverge and meet again a fault cannot be distinguished
from autocorrelation, and this returns the latter. Autocorrelation over more than about a ``_RANGE``-th of the Run is
measured in part only, and that of a few hundredths of the variance may be missed.

Letters: T steps (or samples of steps), N workers, J lags.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trueline.judge.stats.exchangeability import Bools, Floats, medians, pooled_spread
from trueline.judge.stats.intervals import NORMAL_MAD

ERRORS = 5.0
"""Standard errors that a sum of autocorrelations must exceed to count: 3e-7 of normal values do."""

FEWEST_STEPS = 32
"""Steps below which nothing is estimated, and V is 1."""

FEWEST_OF_TWO = 500
"""Least steps with two workers. There every fault is in all there is to measure by, and one that grows over some steps
cannot be distinguished from autocorrelation in a short Run; a Run that shows none yet must not hide a fault."""

_RANGE = 32
"""The largest lag is this fraction of the Run: longer sums are lost where levels are removed."""

_LEVEL_BIAS = 3.2
"""Removing the levels lowers every autocorrelation of white noise by this over T, and otherwise by V times as much, for
which V is corrected."""

_WARY = 1.5
"""Factor on the sum of autocorrelations: a Run shows few stretches of long autocorrelation, and their lengths differ.
Too large a factor only delays alarms; too small a one exceeds the false-alarm budget."""

_TAIL_ERRORS = 3.0
"""Standard errors from which on autocorrelation at the largest lags is followed beyond them."""

_SLOWEST = 0.8
"""The slowest decay that is assumed, from one half of the lags to the next."""

_MOST_WORKERS = 32
"""Workers, evenly chosen, that are measured: their median is known well enough."""

_ROUNDING = 1e-9
"""Spreads that are left by rounding when a level is taken out that is the same at all steps."""

_UNIT_LAG = 16
"""Steps between those whose differences are the unit of the scores: fewer than half of those that it is pooled over
(``exchangeability.SPREAD_STEPS``), so that one change of level hardly moves it."""


@dataclass(frozen=True)
class Dependence:
    """``ratio`` is V, at least 1. ``reach`` is the lag in steps up to which values are correlated; 0: they are not."""

    ratio: float = 1.0
    reach: int = 0


INDEPENDENT = Dependence()
"""The dependence where no autocorrelation is significant."""


def dependence_of(values_TN: Floats) -> Dependence:
    """The dependence of the workers' values [T, N], NaN where not measured or not to be compared."""
    residual_TN = values_TN[np.count_nonzero(np.isfinite(values_TN), axis=1) > 1]
    if len(residual_TN) < FEWEST_STEPS:
        return INDEPENDENT
    residual_TN = residual_TN - medians(residual_TN)[:, None]
    measured_N = np.flatnonzero(np.isfinite(residual_TN).any(axis=0))
    if len(measured_N) == 2 and len(residual_TN) < FEWEST_OF_TWO:
        return INDEPENDENT
    sample_N = np.linspace(0, len(measured_N) - 1, min(len(measured_N), _MOST_WORKERS)).round().astype(np.int64)
    correlation_J = _autocorrelation(_steady(residual_TN[:, measured_N[sample_N]]))
    return _dependence(correlation_J, num_steps=len(residual_TN), num_workers=len(sample_N))


def longest(dependences: Iterable[Dependence]) -> Dependence:
    """Dependence of a statistic of several quantities: the largest ratio and the largest reach of them."""
    candidates = [INDEPENDENT, *dependences]
    return Dependence(
        max(dependence.ratio for dependence in candidates), max(dependence.reach for dependence in candidates)
    )


def _dependence(correlation_J: Floats, *, num_steps: int, num_workers: int) -> Dependence:
    """V of autocorrelations at lags 1 to J, one standard error added, at the range of lags where that is most."""
    if not len(correlation_J):
        return INDEPENDENT
    # Sums over 1, 2, 4 ... lags: few tests, so that the level of each need not be much smaller.
    ladder = np.unique(np.append(2 ** np.arange(int(math.log2(len(correlation_J))) + 1), len(correlation_J)))
    # Two workers' residuals mirror each other. Medians of N - 1 have 2/π of the efficiency of their mean.
    independent = num_steps * (1.0 if num_workers == 2 else (num_workers - 1) * 2 / math.pi)
    sums = np.cumsum(correlation_J)[ladder - 1]
    bias = _LEVEL_BIAS * ladder / num_steps
    if not np.any(sums + bias > ERRORS * np.sqrt(ladder / independent)):
        return INDEPENDENT
    ratio = (1 + 2 * sums) / (1 - 2 * bias) * (1 + np.sqrt(4 * ladder / independent))
    ratio = 1 + _WARY * (ratio - 1)
    tail, stretch = _tail(correlation_J, independent)
    whole = float(ratio[-1]) + _WARY * 2 * tail
    if whole >= np.max(ratio):
        return Dependence(max(1.0, whole), round(len(correlation_J) * stretch))
    return Dependence(max(1.0, float(np.max(ratio))), int(ladder[np.argmax(ratio)]))


def _tail(correlation_J: Floats, independent: float) -> tuple[float, float]:
    """The sum of the autocorrelations at lags beyond J, if they go on as from the first half of the lags to the second,
    and how many times J they then last; 0 and 1 where the second half has none that is significant.
    """
    half = len(correlation_J) // 2
    early, late = float(correlation_J[:half].sum()), float(correlation_J[-half:].sum()) if half else 0.0
    if late <= _TAIL_ERRORS * math.sqrt(half / independent) or early <= 0:
        return 0.0, 1.0
    ratio = min(late / early, _SLOWEST)
    return late * ratio / (1 - ratio), 1 / (1 - ratio)


def _steady(residual_TN: Floats) -> Floats:
    """Residuals from the middle of the step less the levels of each worker, in a unit, and clipped.

    From three workers on the residuals may be skewed, so that a unit that changes looks like a level: they are scores.
    Their unit is that of differences between steps ``_UNIT_LAG`` steps apart, which no level changes. Two workers' are
    symmetric, and a unit that is of this one difference would change wherever it does: theirs is that of the Run.
    """
    measured_TN = np.isfinite(residual_TN)
    if residual_TN.shape[1] == 2:
        unit = medians(np.abs(residual_TN[:, 0]))[None, None] / NORMAL_MAD
    else:
        apart_TN = residual_TN[_UNIT_LAG:] - residual_TN[:-_UNIT_LAG]
        # A difference has twice the variance of a value; the first steps take those of the steps behind them.
        unit = pooled_spread(np.concatenate([apart_TN[:_UNIT_LAG], apart_TN]) / math.sqrt(2))[:, None]
    limit = 2 + math.sqrt(2 * math.log(residual_TN.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_TN = np.where(residual_TN == 0, 0.0, residual_TN / np.where(unit > 0, unit, 0.0))
    clipped_TN = np.where(measured_TN, np.clip(ratio_TN, -limit, limit), 0.0)
    left_TN = clipped_TN - _two_levels(clipped_TN, measured_TN)
    left_TN[np.abs(left_TN) < _ROUNDING] = 0.0
    return np.where(measured_TN, left_TN, np.nan)


def _autocorrelation(scores_TN: Floats) -> Floats:
    """[J] the median over workers of the autocorrelation at lags 1 to T // ``_RANGE``."""
    measured_TN = np.isfinite(scores_TN)
    num_lags = len(scores_TN) // _RANGE
    products = _lagged(np.where(measured_TN, scores_TN, 0.0), num_lags)
    pairs = np.round(_lagged(measured_TN.astype(np.float64), num_lags))
    with np.errstate(divide="ignore", invalid="ignore"):
        covariance = products / pairs
        correlation = covariance[1:] / covariance[0]
    # Workers that are constant have no correlation: where they are the majority, nothing is said.
    varies = np.isfinite(correlation).all(axis=0) & (covariance[0] > 1e-12)
    is_majority = 2 * np.count_nonzero(varies) >= scores_TN.shape[1]
    return medians(correlation[:, varies]) if is_majority and varies.any() else np.zeros(0)


def _lagged(values_TN: Floats, num_lags: int) -> Floats:
    """[1 + J, N] sums of products with the values so many steps later."""
    size = 1 << (2 * len(values_TN) - 1).bit_length()  # padded, or the convolution would wrap around
    spectrum = np.fft.rfft(values_TN, size, axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, size, axis=0)[: num_lags + 1]


def _two_levels(filled_TN: Floats, measured_TN: Bools) -> Floats:
    """[T, N] two levels each, before and after the step at which they explain most (least squares)."""
    sums, counts = np.cumsum(filled_TN, axis=0), np.cumsum(measured_TN, axis=0)
    rest, rest_counts = sums[-1] - sums, counts[-1] - counts
    before, after = sums / np.maximum(counts, 1), rest / np.maximum(rest_counts, 1)
    at_N = np.argmax(sums * before + rest * after, axis=0)
    columns = np.arange(filled_TN.shape[1], dtype=np.int64)
    late_TN = np.arange(len(filled_TN))[:, None] > at_N
    return np.where(late_TN, after[at_N, columns], before[at_N, columns])
