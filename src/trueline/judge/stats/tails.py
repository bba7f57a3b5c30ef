"""Probabilities without tuned thresholds: test martingales over chance events, exact tails, chi-square quantiles.

Pure functions of NumPy and the standard library. M events in the order in which they were seen.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trueline.schema.finding import LEAST_PROBABILITY

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALARM_LEVEL = 1e-6
"""Largest probability with which one check may alarm on one healthy Run.

A team that checks a hundred Runs a day with ten checks that know a probability then meets one false alarm in about
three years; a real overlap or duplicate passes this level within some tens of repeated samples
(benchmarks/exact_checks).
"""

NAMING_LEVEL = 1e-3
"""Largest probability of naming single ranks where all are involved equally. It decides what a Finding says, never
whether there is one, and so may be larger than ``ALARM_LEVEL``."""

ODDS: tuple[float, ...] = (3.0, 10.0, 100.0, 1e4)
"""Alternatives that a test martingale is averaged over: how many times larger than by chance the odds of an event
are. Any fixed choice gives a valid test; a wide one costs ln 4 = 1.4 nats and has power from mild to total faults."""


def probability(log_p: float) -> float:
    """exp(log_p), from ``LEAST_PROBABILITY`` to 1: a bound that does not underflow to an exact 0."""
    return math.exp(min(max(log_p, math.log(LEAST_PROBABILITY)), 0.0))


def log_e_process(hits_M: Ints, trials_M: Ints, chance_M: Floats, block_M: Ints) -> Floats:
    """Natural log of a test martingale after each of M events, [M]; it passes ln(1/a) with probability at most a.

    Event i has ``trials`` draws of which ``hits`` hit, each with probability at most ``chance`` given everything
    before under the null hypothesis, and negatively dependent (draws without replacement). For odds ratio t the
    factor ``t**hits / (1 + (t - 1) * chance)**trials`` has expectation at most 1: with equality for one Bernoulli
    draw, and for hypergeometric draws because x -> t**x is convex (Hoeffding, JASA 58, 1963, theorem 4). Products of
    such factors are non-negative supermartingales, averages of them too, so by Ville's inequality the largest value
    ever reached exceeds 1/a with probability at most a (Ramdas et al., Statistical Science 38(4), 2023, section 3).

    ``block`` [M] is ascending and numbers stretches (epochs): the process is averaged over starts at each block, with
    weight 0.8 for the first and 0.2/(j(j + 1)) for the j-th after it, so that a fault which begins late is not buried
    by a healthy past.
    """
    if not len(hits_M):
        return np.zeros(0)
    starts_M = np.diff(block_M, prepend=block_M[0] - 1) != 0  # the first event begins a block, too
    order_M = np.cumsum(starts_M)
    weight_M = np.where(order_M == 1, 0.8, 0.2 / np.maximum(order_M * (order_M - 1.0), 1))
    log_weight_M = np.where(starts_M, np.log(weight_M), -np.inf)
    per_odds = [_log_from_starts(odds, hits_M, trials_M, chance_M, log_weight_M) for odds in ODDS]
    return np.logaddexp.reduce(np.stack(per_odds), axis=0) - math.log(len(ODDS))


def log_likelihood_steps(hits_M: Ints, trials_M: Ints, chance_M: Floats, *, odds: float = 100.0) -> Floats:
    """Natural log of each event's factor for one odds ratio, [M]: positive where the event speaks for the
    alternative.
    """
    return np.asarray(hits_M * math.log(odds) - trials_M * np.log1p((odds - 1) * chance_M), dtype=np.float64)


def evidence_start(steps_M: Floats, alarm: int) -> int:
    """Index of the event at which the evidence starts that alarmed at index ``alarm``: after the lowest sum before
    it, the last of several.
    """
    sums = np.concatenate([[0.0], np.cumsum(steps_M[:alarm])])
    # Reversed: argmin takes the first of equal sums, and the last is wanted.
    return alarm - int(np.argmin(sums[::-1]))


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """P(X >= hits) for X binomial, summed exactly from its largest term; 1.0 for ``hits`` <= 0."""
    if hits <= 0:
        return 1.0
    if hits > trials or chance <= 0:
        return 0.0
    if chance >= 1:
        return 1.0
    k = np.arange(hits, trials + 1, dtype=np.float64)
    lgamma = np.vectorize(math.lgamma, otypes=[np.float64])
    log_choose = math.lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
    return min(
        1.0, float(np.exp(np.logaddexp.reduce(log_choose + k * math.log(chance) + (trials - k) * math.log1p(-chance))))
    )


def chi_square_quantile(probability: float, dof: int) -> float:
    """The x with P(chi-square with ``dof`` degrees of freedom <= x) = ``probability``, to about 1e-12 relative.

    Raises ValueError where ``probability`` is not in (0, 1) or ``dof`` is below 1.
    """
    if not 0 < probability < 1 or dof < 1:
        raise ValueError(f"A chi-square quantile needs 0 < probability < 1 and dof >= 1, got {probability} and {dof}.")
    low, high = 0.0, float(dof)
    while gamma_lower(dof / 2, high / 2) < probability:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if gamma_lower(dof / 2, middle / 2) < probability else (low, middle)
    return (low + high) / 2


def gamma_lower(shape: float, x: float) -> float:
    """Regularised lower incomplete gamma function P(shape, x).

    Below shape + 1 by its power series (DLMF 8.11.4), above by the continued fraction of its complement (DLMF 8.9.2),
    evaluated with the modified Lentz method (Thompson and Barnett, J. Comput. Phys. 64, 1986).
    """
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    return scale * _gamma_series(shape, x) if x < shape + 1 else 1 - scale * _gamma_fraction(shape, x)


def _log_from_starts(odds: float, hits_M: Ints, trials_M: Ints, chance_M: Floats, log_weight_M: Floats) -> Floats:
    steps_M = log_likelihood_steps(hits_M, trials_M, chance_M, odds=odds)
    sums_M = np.cumsum(steps_M)
    return sums_M + np.logaddexp.accumulate(log_weight_M - (sums_M - steps_M))


def _gamma_series(shape: float, x: float) -> float:
    term = total = 1 / shape
    n = shape
    while abs(term) > abs(total) * 1e-17:
        n += 1
        term *= x / n
        total += term
    return total


def _gamma_fraction(shape: float, x: float) -> float:
    tiny = 1e-300  # in place of a zero denominator, as Lentz's method takes it
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    fraction = d
    for i in range(1, 10_000):
        a = -i * (i - shape)
        b += 2
        d = 1 / _away_from_zero(a * d + b, tiny)
        c = _away_from_zero(b + a / c, tiny)
        fraction *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return fraction


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
