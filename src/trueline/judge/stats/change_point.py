"""Step since which a series that was around 0 is on another level: a least-squares change point, with an interval.

Evidence that adds up over steps decides whether there is a difference, and when it had become enough; where it begins
to win depends on chance before the change, so it does not date. Levels do: exchangeable workers differ by 0 in the
mean, so of all steps k that is taken which leaves least squares around 0 before k and around the mean from k on. The
interval holds every k of which the likelihood ratio to the best is too small to exclude it: for normal noise twice its
log is, at the true k, below x with the probability (1 - exp(-x/2))^2 (Yao, Ann. Stat. 15, 1987, for shifts that are
small against the noise; larger ones make it conservative, Siegmund, Int. Stat. Rev. 56, 1988).
``studies/judgement``, onsets, counts how often it holds the truth.

Letters: T steps, R that say something, M workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueline.judge.stats.alarms import Alarm
from trueline.judge.stats.autocorrelation import Dependence
from trueline.judge.stats.exchangeability import Floats
from trueline.judge.stats.intervals import NORMAL_MAD, mean_gap

_LEVEL = -2 * math.log(1 - math.sqrt(0.95))
"""Twice the log of the likelihood ratio that holds the true step with 95 %: 7.35."""

_NEARBY = 25
"""Steps on each side from which the noise at a step is taken."""

_CLIPPED = 3.0
"""Standard deviations beyond which a value counts as this: heavy tails date nothing."""


@dataclass(frozen=True)
class Onset:
    """Index of the first step of the later level, and the lowest and highest that it may be (95 %)."""

    at: int
    low: int
    high: int


def onset_of(values_T: Floats, *, latest: int, dependence_ratio: float = 1.0, steady: bool = False) -> Onset:
    """The onset, at ``latest`` or before, of the level that ``values_T`` (measured at every step) end on.
    ``dependence_ratio`` is the factor by which correlated steps overstate the evidence. ``steady`` values have the same
    noise all along the run until they change, as shares and ranks have; others are divided by what it is nearby.
    """
    values_T = values_T if steady else values_T / _noise(values_T)
    gain_K, spread2 = _gains(values_T, latest)
    for _ in range(2):  # outliers follow from the levels, and the levels from the rest
        best = int(np.argmax(gain_K))
        levels_T = np.where(np.arange(len(values_T)) < best, 0.0, np.median(values_T[best:]))
        room = _CLIPPED * math.sqrt(spread2)
        gain_K, spread2 = _gains(np.clip(values_T, levels_T - room, levels_T + room), latest)
    best = int(np.argmax(gain_K))
    ratio_K = (gain_K[best] - gain_K) / (max(spread2, 1e-300) * dependence_ratio)
    plausible = np.flatnonzero(ratio_K <= _LEVEL)
    return Onset(best, int(plausible[0]), int(plausible[-1]))


def alarm_onset(values_R: Floats, alarm: Alarm, dependence: Dependence, *, steady: bool = False) -> Onset:
    """The onset in the rows that ``alarm`` counts, of values [R] that are around 0 before it: of those up to where the
    evidence is highest, at the alarm or before. NaN where not measured.
    """
    rows = np.flatnonzero(np.isfinite(values_R[: alarm.last + 1]))
    latest = int(np.searchsorted(rows, alarm.crossed))
    onset = onset_of(values_R[rows], latest=latest, dependence_ratio=dependence.ratio, steady=steady)
    return Onset(*(int(rows[index]) for index in (onset.at, onset.low, onset.high)))


def worker_onset(values_RM: Floats, worker: int, alarm: Alarm, dependence: Dependence) -> Onset:
    """The onset, in rows, of the difference of the worker at ``worker`` from the mean of the others."""
    peers = tuple(n for n in range(values_RM.shape[1]) if n != worker)
    return alarm_onset(mean_gap(values_RM, (worker,), peers), alarm, dependence)


def _gains(values_T: Floats, latest: int) -> tuple[Floats, float]:
    """[latest + 1] by how much a level that begins at each step lowers the squares around 0; and the variance that the
    best of them leaves.
    """
    num = len(values_T)
    steps = np.arange(min(latest, num - 1) + 1)
    tails_K = np.cumsum(values_T[::-1])[::-1][: len(steps)]
    gain_K = np.square(tails_K) / (num - steps)
    return gain_K, max(float(np.square(values_T).sum() - gain_K.max()) / max(num - 1, 1), 0.0)


def _noise(values_T: Floats) -> Floats:
    """[T] standard deviation of a step, from the differences of successive steps nearby, which no level is part of."""
    gaps = np.abs(np.diff(values_T))
    if not len(gaps):
        return np.ones(len(values_T))
    padded = np.concatenate([np.full(_NEARBY, np.nan), gaps, np.full(_NEARBY + 1, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEARBY + 1)
    noise_T = np.nanmedian(windows, axis=1) / (NORMAL_MAD * math.sqrt(2))
    noise_T = np.concatenate([noise_T, noise_T[-1:]])[: len(values_T)]
    largest = float(noise_T.max())
    # A stretch of equal values has no noise; dividing by almost none would date the onset there.
    return np.maximum(noise_T, 1e-3 * largest) if largest > 0 else np.ones(len(values_T))
