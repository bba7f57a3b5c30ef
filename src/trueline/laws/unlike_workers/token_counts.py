"""Numbers of tokens of the workers, and how unequal they are at a step.

T steps, M workers of one declared group, B bets.
"""

from __future__ import annotations

import numpy as np

from trueline.judge.compared_ranks import Floats
from trueline.laws.unlike_workers.comparable import comparable_groups
from trueline.laws.unlike_workers.series import WorkerSeries

ORDINARY = 1.5
"""Noise factor that bets are made against: between log-normal counts of sigma 0.5 (1.28 at most) and ``LARGE``, so that
factors of ``LARGE`` and more win from the start."""

NOISE_BETS: tuple[float, ...] = (0.05, 0.2, 0.6)
"""Stakes b of the bets on the noise factor: small ones survive many even steps between a few wild ones."""


def noise_factors(tokens_TN: Floats) -> Floats:
    """[T] arithmetic over harmonic mean of the positive counts of a step; NaN where fewer than two workers have one."""
    positive = np.where(tokens_TN > 0, tokens_TN, np.nan)
    count = np.count_nonzero(np.isfinite(positive), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.nansum(positive, axis=1) * np.nansum(1 / positive, axis=1) / np.square(count)
    return np.where(count > 1, factor, np.nan)


def log_noise_e_values(factors_T: Floats) -> Floats:
    """[T, B] natural logs of e-values against noise factors of at most ``ORDINARY`` in the mean."""
    excess_T = (factors_T - 1) / (ORDINARY - 1)
    return np.log1p(np.outer(excess_T - 1, np.array(NOISE_BETS)))


def log_tokens(series: WorkerSeries) -> Floats:
    """[T, N] natural logs of the counts; NaN where there is none."""
    return np.log(np.where(series.tokens > 0, series.tokens, np.nan))


def counts_among(series: WorkerSeries, members: tuple[int, ...]) -> Floats:
    """[T, M] token counts of the members that are compared, NaN elsewhere."""
    declared = series.declared or (tuple(range(series.num_workers)),)
    counts_TM = series.compared(series.tokens)[declared.index(members)][:, list(members)]
    return np.where(counts_TM > 0, counts_TM, np.nan)


def num_lasting(series: WorkerSeries) -> int:
    """Detectors that the share of tokens is split over if half of it goes to persistent imbalance."""
    return 2 * sum(len(members) for members in comparable_groups(series))
