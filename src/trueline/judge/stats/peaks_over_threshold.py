"""Jumps of one series along time, with a stated rate of false alarms.

A step is compared with the run's own history. The logarithm of a positive series (a loss, a gradient norm) less its
level, the median of the last ``LEVEL_STEPS`` steps, in units of its spread, the median magnitude of the last
``SPREAD_STEPS`` such residuals, is a score z. Of n scores so far, the k largest exceed the one below them, u, by
e_1 ... e_k. If the next score is exchangeable with those before it, it exceeds u with probability (k + 1) / (n + 1);
and if excesses are exponential, the ratio of the next one to the mean of those before has the F law with 2 and 2k
degrees of freedom, so that

    P(next score > z) = (k + 1) / (n + 1) * (1 + (z - u) / (k * mean(e)))^-k

for every n and k: the tail is extrapolated from the run's own, and few steps cost power, not truth. Exponential
excesses of a logarithm are a power law of the series itself, of any index, so heavy-tailed batches are within the law,
and lighter tails only make the true probability smaller (peaks over a threshold: Pickands, Ann. Statist. 3, 1975,
119-131; that excesses over an order statistic are independent of it: Renyi, Acta Math. Hung. 4, 1953, 191-231).

A reported step is no part of the history of those after it as long as it is the only one, so that a second spike is
reported like the first; what recurs is usual.

Of many series the highest score of each step is judged, as one series is: their number then costs nothing, where a
line for each would have to be as much further up.

What is assumed and not proven is that scores are exchangeable, which a level and a spread that follow training make
nearly so. ``studies/spikes`` measures what comes of it.

T steps, P series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trueline.judge.stats.exchangeability import Bools, Floats, Ints

LEVEL_STEPS = 16
"""Steps whose median is the level. Training moves slowly against it, a spike of up to half as many does not move it."""

SPREAD_STEPS = 64
"""Residuals whose median magnitude is the spread: all there are until then, at least ``LEVEL_STEPS`` of them."""

HISTORY_STEPS = 1000
"""Most scores that the next one is compared with."""

TAIL = 10
"""Scores that the tail is estimated from, at most; of fewer than three times as many scores, a third. With more, alarms
where the spread wanders become more frequent than the budget allows; with fewer, only larger jumps are reported."""

TAIL_OF_MANY = 20
"""Scores for the tail of the highest of many series, which is lighter, and less disturbed by one whose spread wanders.
"""

FEWEST = 16
"""Scores before the first step that is judged."""

STEPS_BEFORE = 2 * LEVEL_STEPS + FEWEST
"""Measured steps before the first that is judged."""

FEW_ALARMS = 1
"""Jumps among the last ``HISTORY_STEPS`` steps that are left out of the past; with more, all count."""

ABOVE = 3.0
"""A step less than so many spreads above its level is no jump, whatever the past."""

_BACK = 3.0
"""A series has come back once it is within so many spreads of its level before the jump, or a quarter of the jump."""

_MAX_SPIKE_STEPS = 200
"""Steps after which a series that has not come back has a new level."""

NORMAL_MAD = 0.6744897501960817
"""Median magnitude of a standard normal variable, so that spreads are standard deviations where noise is normal."""

HELD_STEPS = 8
"""Steps for which the level and spread of one of many series are kept, instead of computed for each."""

_CHUNK = 4096

_CELLS = 1 << 22
"""Values of windows that are held at once."""


@dataclass(frozen=True)
class Spike:
    """One jump of a series; ``first``, ``peak`` and ``last`` index its steps.

    ``log_p`` is the natural log of the probability that a healthy step is as far up as ``first``; ``level`` and
    ``value`` are natural logs, of the level before and of the peak; ``score`` is how many spreads ``first`` is above
    the level. ``back`` says that the series came back after ``last``. ``series_index`` is which of many series it is.
    """

    first: int
    peak: int
    last: int
    log_p: float
    level: float
    value: float
    score: float
    back: bool
    series_index: int = 0

    @property
    def ratio(self) -> float:
        """The peak over the level before."""
        return math.exp(min(self.value - self.level, 700.0))


def find_spikes(log_T: Floats, *, log_level: float, least: float, starts: Sequence[int] = ()) -> list[Spike]:
    """The jumps in ``log_T``, the natural log of a series, NaN where it is not to be judged; in order of time.

    ``log_level`` is the natural log of the probability per step of a jump that is reported. ``least`` is by how much (a
    natural log) a step must be above its level to be a jump at all. The past before each of ``starts`` (indices, where
    a healthy run may jump) is forgotten there.
    """
    spikes: list[Spike] = []
    for begin, end in stretches(len(log_T), starts):
        at = begin + np.flatnonzero(np.isfinite(log_T[begin:end]))
        if len(at) > STEPS_BEFORE:
            spikes += _in_stretch(log_T[at], at.astype(np.int64), log_level, least)
    return spikes


def find_spikes_of_many(log_TP: Floats, *, log_level: float, least: float, starts: Sequence[int] = ()) -> list[Spike]:
    """The jumps of P series that are judged together, as ``find_spikes``; ``log_level`` is that of all. Of several that
    jump at one step it is the one with the highest score. A jump is over after ``LEVEL_STEPS`` at the latest, and until
    then no other is looked for.
    """
    spikes: list[Spike] = []
    for begin, end in stretches(len(log_TP), starts):
        at = begin + np.flatnonzero(np.isfinite(log_TP[begin:end]).any(axis=1))
        if len(at) > STEPS_BEFORE and log_TP.shape[1]:
            part_TP = log_TP[at]
            scored = scores_of_many(part_TP)
            spikes += _reported(part_TP, *scored, at, log_level, least, max_steps=LEVEL_STEPS, tail=TAIL_OF_MANY)
    return spikes


@dataclass(frozen=True)
class SpikePast:
    """The past that a further step of P series, judged together, or of one is compared with, since the last start.

    ``values`` [S, P] are the last ones, as many as a level and a spread need, where there is none the last one known;
    ``scores`` [H] are the highest of each of the last ``HISTORY_STEPS`` steps, -inf where there is none; ``num_steps``
    is how many steps there were, all together.
    """

    values: Floats
    scores: Floats
    num_steps: int

    @classmethod
    def empty(cls, num_series: int) -> SpikePast:
        """The past before any step."""
        return cls(np.zeros((0, num_series)), np.zeros(0), 0)


def extend_past(before: SpikePast, log_TP: Floats, *, log_level: float, least: float, single: bool) -> SpikePast | None:
    """``before`` with further steps; None where ``find_spikes`` (``single`` series) or ``find_spikes_of_many`` finds a
    jump at any of them, if none was at the steps before.
    """
    log_TP = log_TP[np.isfinite(log_TP).any(axis=1)]
    if not len(log_TP):
        return before
    num = len(before.values)
    known_TP = np.concatenate([before.values, log_TP])
    score_TP, level_TP, _ = (score[:, None] for score in scores(known_TP[:, 0])) if single else scores_of_many(known_TP)
    score_T, rise_T, _ = _highest(score_TP[num:], log_TP - level_TP[num:])
    score_T = np.concatenate([before.scores, score_T])
    offset = len(before.scores)
    # Only steps that are far up can be jumps: the tail, which takes longer, is looked up for these alone.
    for t in np.flatnonzero((score_T[offset:] > ABOVE) & (rise_T >= least)).tolist():
        if before.num_steps + t >= STEPS_BEFORE:
            history = score_T[max(offset + t - HISTORY_STEPS, 0) : offset + t]
            history = history[np.isfinite(history)]
            tail = TAIL if single else TAIL_OF_MANY
            if len(history) >= FEWEST and log_probability(float(score_T[offset + t]), history, tail=tail) <= log_level:
                return None
    num_steps = before.num_steps + len(log_TP)
    num_kept = LEVEL_STEPS + SPREAD_STEPS + num_steps % HELD_STEPS  # so that levels are held at the same steps
    return SpikePast(_filled(known_TP)[-num_kept:], score_T[-HISTORY_STEPS:], num_steps)


def num_judged(log_T: Floats, starts: Sequence[int] = ()) -> int:
    """Number of steps that ``find_spikes`` would judge."""
    counts = [int(np.count_nonzero(np.isfinite(log_T[a:b]))) for a, b in stretches(len(log_T), starts)]
    return sum(max(count - STEPS_BEFORE, 0) for count in counts)


def log_probability(score: float, before: Floats, *, tail: int = TAIL) -> float:
    """Natural log of the probability of a score this large after the scores ``before`` [n], n at least 2, by the
    ``tail`` largest of them at most.

    0 where it is not among the largest, or where the largest are all equal.
    """
    num = len(before)
    k = tail_size(num, tail)
    ordered = np.partition(before, num - k - 1)  # the order of the others does not matter
    return log_tail(score, ordered[num - k - 1 :], num)


def tail_size(num: int, tail: int = TAIL) -> int:
    """Number of the largest of ``num`` scores that the tail is estimated from, ``tail`` at most."""
    return min(tail, max(num // 3, 1))


def log_tail(score: float, largest: Floats, num: int, *, least_mean: float = 0.0) -> float:
    """``log_probability`` after ``num`` scores of which ``largest`` are the ``tail_size(num)`` largest and, first, the
    one below them. Their mean excess is taken for ``least_mean`` at least.
    """
    k = len(largest) - 1
    threshold = float(largest[0])
    mean = max(float((largest[1:] - threshold).mean()), least_mean)
    if score <= threshold or mean <= 0:
        return 0.0
    return math.log((k + 1) / (num + 1)) - k * math.log1p((score - threshold) / (k * mean))


def scores(log_T: Floats) -> tuple[Floats, Floats, Floats]:
    """[T] scores, levels and spreads of a series without gaps; NaN after too few steps, or where nothing moves."""
    level_T = _before(log_T, LEVEL_STEPS, LEVEL_STEPS)
    residual_T = log_T - level_T
    spread_T = np.full(len(log_T), np.nan)
    spread_T[LEVEL_STEPS:] = _before(np.abs(residual_T[LEVEL_STEPS:]), LEVEL_STEPS, SPREAD_STEPS) / NORMAL_MAD
    with np.errstate(divide="ignore", invalid="ignore"):
        score_T = np.where(spread_T > 0, residual_T / spread_T, np.nan)
    return score_T, level_T, spread_T


def scores_of_many(log_TP: Floats) -> tuple[Floats, Floats, Floats]:
    """[T, P] scores, levels and spreads, as those of ``scores``, but computed at every ``HELD_STEPS``-th step. Where a
    series has no value, its last one counts for the level.
    """
    filled_TP = _filled(log_TP)
    level_TP = _held_medians(filled_TP, LEVEL_STEPS, LEVEL_STEPS)
    residual_TP = filled_TP - level_TP
    spread_TP = _held_medians(np.abs(residual_TP), LEVEL_STEPS, SPREAD_STEPS, skipped=LEVEL_STEPS) / NORMAL_MAD
    with np.errstate(divide="ignore", invalid="ignore"):
        score_TP = np.where(spread_TP > 0, (log_TP - level_TP) / spread_TP, np.nan)
    return score_TP, level_TP, spread_TP


def _filled(log_TP: Floats) -> Floats:
    """[T, P] with the last value before where there is none."""
    last_TP = np.where(np.isfinite(log_TP), np.arange(len(log_TP))[:, None], 0)
    return np.take_along_axis(log_TP, np.maximum.accumulate(last_TP, axis=0), axis=0)


def _held_medians(values_TP: Floats, fewest: int, width: int, *, skipped: int = 0) -> Floats:
    """[T, P] median of the up to ``width`` values before each, at every ``HELD_STEPS``-th step and kept until the next;
    the first ``skipped`` are no values.
    """
    medians_TP = np.full_like(values_TP, np.nan)
    full = skipped + width  # steps from this one on have so many values before them
    for t in range(skipped + fewest, min(full, len(values_TP)), HELD_STEPS):
        medians_TP[t : t + HELD_STEPS] = np.median(values_TP[skipped:t], axis=0)
    at = np.arange(full, len(values_TP), HELD_STEPS)
    for block in np.array_split(at, max(len(at) * width * values_TP.shape[1] // _CELLS, 1)) if len(at) else ():
        windows_TPW = np.lib.stride_tricks.sliding_window_view(values_TP, width, axis=0)[block - width]
        medians = np.repeat(np.median(windows_TPW, axis=2), HELD_STEPS, axis=0)
        medians_TP[block[0] : block[0] + len(medians)] = medians[: len(medians_TP) - block[0]]
    return medians_TP


def stretches(num_steps: int, starts: Sequence[int]) -> list[tuple[int, int]]:
    """First step of each past, and the step after its last."""
    return list(pairwise([0, *sorted({start for start in starts if 0 < start < num_steps}), num_steps]))


def _in_stretch(log_T: Floats, at: Ints, log_level: float, least: float) -> list[Spike]:
    """The spikes of a series without gaps, whose steps are ``at`` in the one that was given."""
    score_T1, level_T1, spread_T1 = (score[:, None] for score in scores(log_T))
    return _reported(
        log_T[:, None], score_T1, level_T1, spread_T1, at, log_level, least, max_steps=_MAX_SPIKE_STEPS, tail=TAIL
    )


def _reported(
    log_TP: Floats,
    score_TP: Floats,
    level_TP: Floats,
    spread_TP: Floats,
    at: Ints,
    log_level: float,
    least: float,
    *,
    max_steps: int,
    tail: int,
) -> list[Spike]:
    """The spikes of the highest score of each step."""
    score_T, rise_T, of_T = _highest(score_TP, log_TP - level_TP)
    known_T: Bools = np.isfinite(score_T)
    reported: list[int] = []
    spikes: list[Spike] = []
    free = STEPS_BEFORE
    for t in np.flatnonzero((score_T > ABOVE) & (rise_T >= least)).tolist():
        if t < free:
            continue
        begin = max(t - HISTORY_STEPS, 0)
        reported = [index for index in reported if index >= begin]
        # A lone jump is left out of the past, so that a second one is reported too; what recurs is usual.
        known_T[reported] = len(reported) > FEW_ALARMS
        before = score_T[begin:t][known_T[begin:t]]
        log_p = log_probability(float(score_T[t]), before, tail=tail) if len(before) >= FEWEST else 0.0
        if log_p > log_level:
            continue
        p = int(of_T[t])
        log_T = log_TP[:, p]
        end, back = _end(log_T, t, float(level_TP[t, p]), float(spread_TP[t, p]), max_steps)
        known_T[t:end] = False  # the steps of a spike are no past either
        reported.append(t)
        free = end
        peak = t + int(np.nanargmax(log_T[t:end]))
        level, value, score = float(level_TP[t, p]), float(log_T[peak]), float(score_T[t])
        spikes.append(Spike(int(at[t]), int(at[peak]), int(at[end - 1]), log_p, level, value, score, back, p))
    return spikes


def _highest(score_TP: Floats, rise_TP: Floats) -> tuple[Floats, Floats, Ints]:
    """[T] the highest score of each step, -inf where there is none, how far that series is up, and which it is."""
    score_TP = np.where(np.isfinite(score_TP), score_TP, -np.inf)
    of_T = np.argmax(score_TP, axis=1)
    score_T, rise_T = (np.take_along_axis(values_TP, of_T[:, None], axis=1)[:, 0] for values_TP in (score_TP, rise_TP))
    return score_T, rise_T, of_T


def _end(log_T: Floats, first: int, level: float, spread: float, max_steps: int) -> tuple[int, bool]:
    """The index after the last step of a spike, and whether the series came back there, within ``max_steps`` steps."""
    line = level + max(_BACK * spread, float(log_T[first] - level) / 4)
    below = np.flatnonzero(log_T[first + 1 : first + max_steps] <= line)
    if len(below):
        return first + 1 + int(below[0]), True
    return min(first + max_steps, len(log_T)), False


def _before(values_T: Floats, fewest: int, width: int) -> Floats:
    """[T] median of the up to ``width`` values before each; NaN where there are fewer than ``fewest``."""
    medians_T = np.full(len(values_T), np.nan)
    for t in range(fewest, min(width, len(values_T))):
        medians_T[t] = np.median(values_T[:t])
    if len(values_T) > width:
        windows = np.lib.stride_tricks.sliding_window_view(values_T[:-1], width)
        for begin in range(0, len(windows), _CHUNK):
            part = np.median(windows[begin : begin + _CHUNK], axis=1)
            medians_T[width + begin : width + begin + len(part)] = part
    return medians_T
