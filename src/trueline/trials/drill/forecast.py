"""After how many steps a loss that is a few per cent larger on one rank would be seen, at the noise of a job.

Steps of the undisturbed Run are drawn again and again, at each the ranks change places at random, as those of a healthy
job may, and one rank's loss and gradient are made larger. The detectors of losses and gradient norms then say when they
alarm. That later steps are like these, and that steps know nothing of each other, is taken for granted.

Letters: T steps, N ranks, R draws of steps.
"""

from __future__ import annotations

import numpy as np

from trueline.judge.compared_ranks import Floats, numbers, several_workers
from trueline.judge.stats.alarm_budget import Statistic, alarm_budget_of
from trueline.judge.stats.autocorrelation import dependence_of
from trueline.judge.stats.exchangeability import log_heights, scores
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

MOST_STEPS = 16_384
"""More is another question: a training whose losses no longer are what they were in a short run."""
_DRAWS = 5
"""Sequences of steps, of which the middle one counts."""
_FEWEST = 8
"""Steps with losses, of which fewer say nothing of the noise."""


def steps_until_seen(run: Run, factor: float) -> int | None:
    """The number of steps, the middle one of several draws; None where it is more than ``MOST_STEPS``, or the Run is of
    one rank, or too short.
    """
    try:
        ranks = several_workers(run)
    except CannotTell:
        return None
    loss_TN, log_norm_TN = (_finite(numbers(run, name, ranks)[0]) for name in ("loss", "grad_norm"))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_norm_TN = _finite(np.log(log_norm_TN))
    measured = np.flatnonzero(np.isfinite(loss_TN).all(axis=1))
    if len(measured) < _FEWEST:
        return None
    loss_TN, log_norm_TN = loss_TN[measured], log_norm_TN[measured]
    random = np.random.default_rng(0)
    numbers_seen = sorted(_num_until_alarm(run, loss_TN, log_norm_TN, factor, random) for _ in range(_DRAWS))
    middle = numbers_seen[_DRAWS // 2]
    return middle if middle <= MOST_STEPS else None


def _num_until_alarm(run: Run, loss_TN: Floats, log_norm_TN: Floats, factor: float, random: np.random.Generator) -> int:
    """Steps until the first alarm, by twice as many steps again and again."""
    num_steps, num_ranks = 128, loss_TN.shape[1]
    while num_steps <= MOST_STEPS:
        drawn = random.integers(len(loss_TN), size=num_steps)
        order_RN = random.permuted(np.tile(np.arange(num_ranks), (num_steps, 1)), axis=1)
        values = {"loss": loss_TN[drawn[:, None], order_RN], "norm": log_norm_TN[drawn[:, None], order_RN]}
        values["loss"][:, -1] *= factor
        values["norm"][:, -1] += np.log(factor)
        # a larger loss has a larger gradient, whichever of the two stands out first
        firsts = [_first_alarm(run, statistic, values[statistic]) for statistic in ("loss", "norm")]
        if firsts := [first for first in firsts if first is not None]:
            return min(firsts)
        num_steps *= 2
    return num_steps


def _first_alarm(run: Run, statistic: Statistic, values_RN: Floats) -> int | None:
    threshold = alarm_budget_of(run).log_threshold(statistic, among=values_RN.shape[1])
    rows = np.flatnonzero(np.isfinite(values_RN).all(axis=1))
    if not len(rows):
        return None
    # gradients are measured at some steps only, and evidence grows at these; a lasting shift is taken for dependence,
    # too, where there are two ranks
    dependence = dependence_of(values_RN[rows])
    heights_RN = log_heights(scores(values_RN[rows]), dependence_N=dependence.ratio)
    above = np.flatnonzero(heights_RN.max(axis=1) >= threshold)
    return int(rows[above[0]]) + 1 if len(above) else None


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
