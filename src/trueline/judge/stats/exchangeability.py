"""Is one worker unlike the others? Bets against the exchangeability of workers, with an exact false-alarm bound.

Healthy workers draw their batches from one pool, so at every step the law of their values (losses, norms, cosines) does
not change when workers are swapped: given the unordered values of the step, and everything before it, each worker holds
each of them with equal probability. For any score z and any bet λ

    e_i = exp(λ z_i) / mean_j exp(λ z_j)

then has expectation exactly 1 for every worker i, whatever the distribution, correlated or heavy-tailed: an e-value.
The Shiryaev-Roberts sum of products over all starts, M_t = e_t (M_{t-1} + 1), is an e-detector: E[M_τ] <= E[τ] for
every stopping time (Shin, Ramdas & Rinaldo, E-detectors, arXiv 2203.03532, section 2), so alarming at M >= 1/α needs at
least 1/α healthy steps on average, and P(max over T steps of M >= m) <= T/m. Averages of e-detectors are e-detectors,
so a family shares one α by weights that add up to 1.

Letters: T steps, N workers, B bets; ``...`` further axes (parameter groups, or independent runs in a simulation).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.tails import probability

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

BETS: tuple[float, ...] = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Bets that a detector is averaged over, in units of one over the healthy spread: the best bet on a worker that is
shifted by d spreads is about d (Gaussian growth λd - λ²/2). Any fixed choice is valid; ten of them cost ln 10 nats."""

SPREAD_STEPS = 50
"""Steps whose spreads are pooled (by their median) into the unit of the scores; it sets the size of the bets, never
their validity."""

_CHUNK_STEPS = 256
"""Steps that are handled at once, so that memory does not grow with the length of the Run times ``SPREAD_STEPS`` or
the number of bets."""


def scores(values_TN: Floats) -> Floats:
    """[T, ..., N] how far each worker is from the middle of its step, in spreads pooled over ``SPREAD_STEPS``.

    ``values_TN`` [T, ..., N] is NaN where not measured, or not to be compared; so is the result. A score depends on the
    step's values only through their unordered set, and on the past, as the e-values need. Scores are clipped at
    2 + √(2 ln N), two spreads beyond the largest of N normal values, so that one heavy-tailed value cannot outweigh
    a history. Where all workers are equal the scores are 0.
    """
    return scores_after(values_TN, np.zeros((0, *values_TN.shape[1:-1])))[0]


def scores_after(values_TN: Floats, spreads: Floats) -> tuple[Floats, Floats]:
    """``scores`` of steps that come after others, and the spreads [T, ...] of these steps; ``spreads`` [S, ...] are
    those of the last ``SPREAD_STEPS`` - 1 steps before, or of all there are.
    """
    residual = values_TN - medians(values_TN)[..., None]
    spread = _spread(residual, np.count_nonzero(np.isfinite(residual), axis=-1))
    unit = _pooled(spread, spreads)[..., None]
    limit = 2 + math.sqrt(2 * math.log(max(values_TN.shape[-1], 2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        # Without a spread any difference is infinitely many of them: it counts as the limit.
        z = np.where(unit > 0, residual / unit, np.where(residual == 0, 0.0, np.sign(residual) * limit))
    return np.where(np.isfinite(values_TN), np.clip(np.nan_to_num(z, nan=0.0), -limit, limit), np.nan), spread


def pooled_spread(residual_TN: Floats) -> Floats:
    """[T, ...] the spread of the residuals of a step over workers, its median over the last ``SPREAD_STEPS`` steps."""
    spread = _spread(residual_TN, np.count_nonzero(np.isfinite(residual_TN), axis=-1))
    return _pooled(spread, np.zeros((0, *spread.shape[1:])))


def log_e_values(
    scores_TN: Floats, *, allowance_TN: Floats | float = 0.0, dependence_N: Floats | float = 1.0
) -> Floats:
    """[T, ..., N, B] natural logs of the e-values of every worker and bet; 0 where a worker has no one to compare with.

    ``allowance`` is a persistent shift, in spreads, that is no fault (see ``series.allowance``): a bet λ is charged
    |λ| * allowance, which keeps its expectation at most 1 when a worker's scores are shifted by no more than that.
    ``dependence`` [..., N] (1 or more; see ``autocorrelation``) divides the logs.
    """
    measured = np.isfinite(scores_TN)
    alone = np.count_nonzero(measured, axis=-1) < 2
    allowance = np.broadcast_to(np.asarray(allowance_TN, dtype=np.float64), scores_TN.shape)
    dependence = np.asarray(dependence_N, dtype=np.float64)
    log_e_TNB = np.zeros((*scores_TN.shape, len(BETS)))
    count = np.maximum(np.count_nonzero(measured, axis=-1), 1)[..., None]
    for b, bet in enumerate(BETS):
        exponent = np.where(measured, bet * scores_TN, -np.inf)
        # log-sum-exp around the largest exponent, which a step without measured workers lacks
        top = np.where(alone, 0.0, np.max(exponent, axis=-1, initial=-np.inf))[..., None]
        log_mean = top + np.log(np.maximum(np.exp(exponent - top).sum(axis=-1, keepdims=True), 1e-300) / count)
        log_e = exponent - log_mean - abs(bet) * allowance
        log_e_TNB[..., b] = np.where(measured & ~alone[..., None], log_e / dependence, 0.0)
    return log_e_TNB


def e_values(scores_TN: Floats) -> Floats:
    """[T, B, ..., N] the exponentials of ``log_e_values`` without allowance or dependence, up to rounding."""
    measured = np.isfinite(scores_TN)
    count = np.count_nonzero(measured, axis=-1)[..., None]
    judged, filled_TN = measured & (count > 1), np.where(measured, scores_TN, 0.0)
    e_TBN = np.empty((len(scores_TN), len(BETS), *scores_TN.shape[1:]))
    for b, bet in enumerate(BETS):
        e_TN = np.exp(bet * filled_TN)
        e_TN[~measured] = 0.0
        e_TBN[:, b] = np.where(
            judged, e_TN * count / e_TN.sum(axis=-1, keepdims=True, where=judged, initial=1e-300), 1.0
        )
    return e_TBN


def log_detector(log_e_TNB: Floats) -> Floats:
    """[T, ..., N] natural log of each worker's e-detector after every step, averaged over the bets."""
    return np.logaddexp.reduce(log_detectors(log_e_TNB), axis=-1) - math.log(log_e_TNB.shape[-1])


def log_heights(scores_TN: Floats, *, allowance_TN: Floats | float = 0.0, dependence_N: Floats | float = 1.0) -> Floats:
    """[T, ..., N] ``log_detector`` of ``log_e_values`` of the scores, without holding all bets of all steps at once."""
    allowance = np.broadcast_to(np.asarray(allowance_TN, dtype=np.float64), scores_TN.shape)
    heights_TN = np.empty_like(scores_TN)
    before: Floats | None = None
    for start in range(0, len(scores_TN), _CHUNK_STEPS):
        part = slice(start, start + _CHUNK_STEPS)
        log_e = log_e_values(scores_TN[part], allowance_TN=allowance[part], dependence_N=dependence_N)
        log_m = log_detectors(log_e, before=before)
        heights_TN[part] = np.logaddexp.reduce(log_m, axis=-1) - math.log(len(BETS))
        before = log_m[-1]
    return heights_TN


def log_detectors(log_e_TNB: Floats, *, before: Floats | None = None) -> Floats:
    """[T, ..., N, B] natural log of the e-detector of every bet by itself: M_t = e_t (M_{t-1} + 1), from ``before``
    [..., N, B] on.
    """
    log_m_TNB = np.empty_like(log_e_TNB)
    state = np.full(log_e_TNB.shape[1:], -np.inf) if before is None else before
    for t in range(len(log_e_TNB)):
        state = np.logaddexp(state, 0.0, out=log_m_TNB[t, ...])
        state += log_e_TNB[t]
    return log_m_TNB


def log_threshold(*, false_alarms: float, weight: float) -> float:
    """The height at which a detector that has ``weight`` (0-1) of the family alarms: ln(10,000 / (false_alarms *
    weight)) for ``false_alarms`` expected per 10,000 healthy steps over the whole family.
    """
    return math.log(10_000 / (false_alarms * weight))


def false_alarm_rate(log_height: float, *, num_steps: int, weight: float) -> float:
    """Bound on the probability that ``num_steps`` healthy steps lift any detector of the family so far above its share:
    T / (m * weight), at most 1.
    """
    return probability(math.log(max(num_steps, 1)) - log_height - math.log(weight))


def medians(values: Floats) -> Floats:
    """Median over the last axis of what was measured; NaN where nothing was."""
    ordered = np.sort(values, axis=-1)  # NaN last
    count = np.count_nonzero(np.isfinite(values), axis=-1)
    low, high = np.maximum((count - 1) // 2, 0)[..., None], np.maximum(count // 2, 0)[..., None]
    high = np.minimum(high, values.shape[-1] - 1)
    middle = (np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1))[..., 0] / 2
    return np.where(count > 0, middle, np.nan)


def _spread(residual: Floats, count: Ints) -> Floats:
    """[T, ...] median absolute residual in units of a normal standard deviation; up to three workers, where a median
    would drop the odd one, the root mean square.
    """
    robust = medians(np.abs(residual)) / 0.6744897501960817  # the 75 % point of the normal law
    with np.errstate(invalid="ignore", divide="ignore"):
        plain = np.sqrt(np.nansum(np.square(residual), axis=-1) / np.maximum(count - 1, 1))
    return np.where(count > 1, np.where(count > 3, robust, plain), np.nan)


def _pooled(spread_T: Floats, before: Floats) -> Floats:
    """[T, ...] median of the spreads of the last ``SPREAD_STEPS`` steps, this one and those ``before`` included; NaN
    before the first.
    """
    pooled_T = np.empty_like(spread_T)
    padding = np.full((SPREAD_STEPS - 1, *spread_T.shape[1:]), np.nan)
    past = np.concatenate([padding, before])[len(before) :]
    # A view: the windows themselves would take SPREAD_STEPS times the memory.
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([past, spread_T]), SPREAD_STEPS, axis=0)
    for start in range(0, len(spread_T), _CHUNK_STEPS):
        pooled_T[start : start + _CHUNK_STEPS] = medians(windows[start : start + _CHUNK_STEPS])
    return pooled_T
