"""What runs that show a fault, or do not, say when each shows it by chance.

A run shows a fault with probability r where its cause is present and with f where it is not. Neither is known: both are
integrated over what the runs so far leave of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trueline.judge.stats.tails import binomial_tail

_ALWAYS = 0.5
"""Prior probability that a fault shows in every run (r = 1): most do, and 3 of 3 then say more than r >= 0.37."""
_NEVER = 0.6
"""Prior probability that nothing else shows it (f = 0), as where an exact check finds it."""
_ALARMS = 20.0
"""Else f has the prior Beta(1, 20): a mean of 0.05, the largest that a check may have and still be a check."""


@dataclass(frozen=True)
class Counts:
    """Of ``runs``, how many ``showed`` it."""

    runs: int = 0
    showed: int = 0

    def __add__(self, counts: Counts) -> Counts:
        return Counts(self.runs + counts.runs, self.showed + counts.showed)

    def with_one(self, showed: bool) -> Counts:
        """After one more run."""
        return Counts(self.runs + 1, self.showed + showed)


def least_rate(counts: Counts, *, confidence: float = 0.95) -> float:
    """The lower bound of Clopper and Pearson (Biometrika 26, 1934), one-sided, of the rate at which runs show it."""
    if not counts.showed:
        return 0.0
    return _root(lambda rate: binomial_tail(counts.showed, counts.runs, rate) > 1 - confidence)


def most_rate(counts: Counts, *, confidence: float = 0.95) -> float:
    """The upper bound, likewise; 3 / runs where none showed it."""
    if counts.showed == counts.runs:
        return 1.0
    return _root(lambda rate: 1 - binomial_tail(counts.showed + 1, counts.runs, rate) < 1 - confidence)


def clean_runs_needed(rate: float, *, error: float) -> int:
    """Runs without it in a row that leave a probability of ``error`` that it is still there: (1 - rate)^n <= error.

    Raises ``ValueError`` where ``rate`` is not above 0.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"A rate is above 0 and at most 1, got {rate}.")
    # 1e-9: a quotient that is whole but for rounding is no run more
    return 1 if rate == 1 else max(1, math.ceil(math.log(error) / math.log1p(-rate) - 1e-9))


def mean_rate(counts: Counts) -> float:
    """Mean of what is left of r: the probability that the next run with the cause shows it."""
    return math.exp(log_if_present(counts.with_one(True)) - log_if_present(counts))


def mean_false_rate(counts: Counts) -> float:
    """Mean of what is left of f: the probability that the next run without the cause shows it."""
    return math.exp(log_if_absent(counts.with_one(True)) - log_if_absent(counts))


def log_if_present(counts: Counts) -> float:
    """Log probability of these outcomes, in their order, where the cause was present in each of the runs."""
    clean = counts.runs - counts.showed
    varied = math.log1p(-_ALWAYS) + _log_beta_binomial(counts, 1.0, 1.0)
    return varied if clean else _log_sum(math.log(_ALWAYS), varied)


def log_if_absent(counts: Counts) -> float:
    """Log probability of these outcomes, in their order, where the cause was present in none of the runs."""
    varied = math.log1p(-_NEVER) + _log_beta_binomial(counts, 1.0, _ALARMS)
    return varied if counts.showed else _log_sum(math.log(_NEVER), varied)


def log_odds_present(counts: Counts, *, present: Counts, absent: Counts) -> float:
    """Log of how many times likelier the outcomes ``counts`` of an arm are where the cause is in it than where it is
    not, after runs of arms that are known to have it (``present``) or not to (``absent``).
    """
    with_it = log_if_present(present + counts) - log_if_present(present)
    return with_it - (log_if_absent(absent + counts) - log_if_absent(absent))


def decided(log_odds: float, *, error: float) -> bool | None:
    """Decide that it is (True) or is not (False): Wald's sequential test (Ann. Math. Stat. 16, 1945) with both errors
    at most ``error``; None while neither line was crossed.
    """
    line = math.log((1 - error) / error)
    return None if abs(log_odds) < line else log_odds > 0


def _log_beta_binomial(counts: Counts, alpha: float, beta: float) -> float:
    clean = counts.runs - counts.showed
    return _log_beta(alpha + counts.showed, beta + clean) - _log_beta(alpha, beta)


def _log_beta(alpha: float, beta: float) -> float:
    return math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)


def _log_sum(log_a: float, log_b: float) -> float:
    # from the larger term, as exp of the smaller cannot overflow
    high = max(log_a, log_b)
    return high + math.log(math.exp(log_a - high) + math.exp(log_b - high))


def _root(is_above: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    # 60 halvings reach the spacing of float64 below 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2
