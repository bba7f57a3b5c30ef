"""Sizes of differences: means of per-step differences with intervals, and whether they agree with a value.

Healthy workers draw new batches at every step, so per-step differences between them are as good as independent, and
the mean of n of them has a t interval. T steps, N workers, D detectors (the whole, then each parameter group).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trueline.judge.stats.exchangeability import Floats
from trueline.judge.stats.tails import NAMING_LEVEL

NORMAL_MAD = NormalDist().inv_cdf(0.75)
"""Median absolute deviation of a normal value, in standard deviations."""

LEVEL = 0.95
"""Confidence level of the intervals that findings state."""


@dataclass(frozen=True)
class Estimate:
    """A mean over ``num_steps`` steps with its standard error."""

    value: float
    error: float
    num_steps: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The two-sided t interval; everything where fewer than two steps were measured."""
        if self.num_steps < 2 or not math.isfinite(self.error):
            return (-math.inf, math.inf)
        half = t_quantile((1 + level) / 2, self.num_steps - 1) * self.error
        return (self.value - half, self.value + half)

    def agrees(self, target: float, *, room: float, negligible: float = 0.0, among: int = 1) -> bool | None:
        """Decide if the mean is ``target``: False where that is rejected and it differs by more than ``negligible``,
        else True where the whole interval lies within ``room`` of it, None where it is undecided.

        ``among`` is the number of tests that share the level of the rejection, ``NAMING_LEVEL``.
        """
        low, high = self.interval(1 - NAMING_LEVEL / among)
        if not low <= target <= high and abs(self.value - target) > negligible:
            return False
        low, high = self.interval()
        return True if target - room <= low and high <= target + room else None


def mean_difference(values_TN: Floats, workers: tuple[int, ...], peers: tuple[int, ...]) -> Estimate:
    """The mean over steps of the workers' mean minus the others' mean, at steps at which both were measured.

    Means, not medians: where values are skewed, the median of several differs from the mean of one even when healthy.
    """
    return estimate(mean_gap(values_TN, workers, peers))


def mean_gap(values_TN: Floats, workers: tuple[int, ...], peers: tuple[int, ...]) -> Floats:
    """[T] the workers' mean minus the others' mean; NaN where none of either was measured."""
    return _mean(values_TN, workers) - _mean(values_TN, peers)


def mean_of_workers(values_TN: Floats, workers: tuple[int, ...], peers: tuple[int, ...]) -> Estimate:
    """The workers' own mean over steps at which they and others were measured."""
    means_T, peer_means_T = _mean(values_TN, workers), _mean(values_TN, peers)
    return estimate(np.where(np.isfinite(peer_means_T), means_T, np.nan))


def estimate(values_T: Floats) -> Estimate:
    """The mean of what was measured, with its standard error."""
    measured = values_T[np.isfinite(values_T)]
    if not len(measured):
        return Estimate(math.nan, math.inf, 0)
    error = float(measured.std(ddof=1)) / math.sqrt(len(measured)) if len(measured) > 1 else math.inf
    return Estimate(float(measured.mean()), error, len(measured))


def t_quantile(probability: float, dof: int) -> float:
    """The quantile of Student's t: exact for 1 and 2 degrees of freedom, else by bisection of ``t_two_sided``.

    Raises ValueError for a ``probability`` outside (0.5, 1) or ``dof`` below 1.
    """
    if not 0.5 < probability < 1 or dof < 1:
        raise ValueError(f"A t quantile needs 0.5 < probability < 1 and dof >= 1, got {probability} and {dof}.")
    low, high = 0.0, 1.0
    while t_two_sided(high, dof) > 2 * (1 - probability):
        low, high = high, 2 * high
    for _ in range(60):  # bisections: beyond the 52 bits of a float64
        middle = (low + high) / 2
        low, high = (middle, high) if t_two_sided(middle, dof) > 2 * (1 - probability) else (low, middle)
    return (low + high) / 2


def t_two_sided(t: float, dof: int) -> float:
    """P(|X| > t) for Student's t with ``dof`` degrees of freedom, by its finite sums (Abramowitz and Stegun, 26.7.3
    and 26.7.4); 1.0 for ``dof`` below 1. Above 200 degrees of freedom, the normal law at the value that Wallace's
    approximation gives (error below 1e-5; Ann. Math. Stat. 30, 1959).
    """
    if dof < 1:
        return 1.0
    if dof > 200:
        z = (8 * dof + 1) / (8 * dof + 3) * math.sqrt(dof * math.log1p(t * t / dof))
        return math.erfc(z / math.sqrt(2))
    theta = math.atan2(t, math.sqrt(dof))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = (cosine, cosine) if dof % 2 else (1.0, 1.0)
    for k in range(3 if dof % 2 else 2, dof - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    first = theta if dof == 1 else theta + sine * total
    inside = 2 / math.pi * first if dof % 2 else sine * total
    return max(0.0, 1 - inside)


def _mean(values_TN: Floats, workers: tuple[int, ...]) -> Floats:
    """[T] mean over the chosen workers that measured; NaN where none did."""
    values = values_TN[:, list(workers)]
    count = np.count_nonzero(np.isfinite(values), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nansum(values, axis=1) / np.where(count > 0, count, np.nan), dtype=np.float64)
