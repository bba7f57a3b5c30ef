"""Whether the step that has just been measured is a jump, before the next one: ``peaks_over_threshold`` step by step.

Level, spread, score, tail and probability are those of ``find_spikes``, and so is the step at which the first jump
begins. Whoever leaves out what jumps has to know of each step, and did not take it in, so that two things differ: a
jump that lasts is told at each of its steps, and no jump is part of the tail that the next one is compared with, where
``find_spikes`` takes what recurs for usual. Its values do count for the level, so that a series that has risen for good
is at its new level after half of ``LEVEL_STEPS``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

from trueline.judge.stats.peaks_over_threshold import (
    ABOVE,
    FEWEST,
    HISTORY_STEPS,
    LEVEL_STEPS,
    NORMAL_MAD,
    SPREAD_STEPS,
    STEPS_BEFORE,
    log_probability,
)


@dataclass(frozen=True)
class Jump:
    """One step that jumps: natural logs of its ``value`` and of the ``level`` before it, the ``score`` in spreads, and
    the natural log ``log_p`` of the probability of a healthy step this far up.
    """

    value: float
    level: float
    score: float
    log_p: float


class NextSpike:
    """One series whose jumps are asked for one by one; ``log_level`` and ``least`` are those of ``find_spikes``."""

    def __init__(self, *, log_level: float, least: float) -> None:
        self._log_level, self._least = log_level, least
        self.forget()

    def forget(self) -> None:
        """The past counts no more, as after each of ``starts``."""
        self._values: deque[float] = deque(maxlen=LEVEL_STEPS)
        # magnitudes of residuals
        self._residuals: deque[float] = deque(maxlen=SPREAD_STEPS)
        self._scores: deque[float] = deque(maxlen=HISTORY_STEPS)
        self._num_steps = 0

    def add(self, value: float) -> Jump | None:
        """Take the natural log of the next step, finite; the Jump that it is, if it is one."""
        level = median(self._values) if len(self._values) == LEVEL_STEPS else math.nan
        spread = median(self._residuals) / NORMAL_MAD if len(self._residuals) >= LEVEL_STEPS else 0.0
        score = (value - level) / spread if spread > 0 else math.nan
        jump = None
        if self._num_steps >= STEPS_BEFORE and score > ABOVE and value - level >= self._least:
            jump = self._judged(value, level, score)
        self._values.append(value)
        if math.isfinite(level):
            self._residuals.append(abs(value - level))
        self._scores.append(score if jump is None else math.nan)
        self._num_steps += 1
        return jump

    def _judged(self, value: float, level: float, score: float) -> Jump | None:
        before = [known for known in self._scores if math.isfinite(known)]
        if len(before) < FEWEST:
            return None
        log_p = log_probability(score, np.array(before))
        return Jump(value, level, score, log_p) if log_p <= self._log_level else None
