"""What people use on the same series: mean + 6 sigma, ten times the maximum, msProbe's half over the running mean.

Each watches one worker's own loss and gradient norm over time (mean + 6 sigma its cosine as well), with the constants
in use. Letters: T steps, N workers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from studies.judgement.workers import Recorded
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

HISTORY = 100
"""Steps of a worker's own past that mean + 6 sigma looks at; it is silent until it has 30 of them."""

REST = 50
"""Alarms of one worker and series within this many steps of each other count as one."""


def six_sigma(values_TN: Floats) -> Bools:
    """Further than 6 standard deviations from the mean of the last ``HISTORY`` steps."""
    padded = np.concatenate([np.zeros((1, values_TN.shape[1])), np.cumsum(values_TN, axis=0)])
    square = np.concatenate([np.zeros((1, values_TN.shape[1])), np.cumsum(values_TN**2, axis=0)])
    end = np.arange(len(values_TN))
    begin = np.maximum(end - HISTORY, 0)
    count = np.maximum(end - begin, 1)[:, None]
    mean = (padded[end] - padded[begin]) / count
    variance = np.maximum((square[end] - square[begin]) / count - mean**2, 0)
    return (np.abs(values_TN - mean) > 6 * np.sqrt(variance)) & (end >= 30)[:, None]


def ten_times_maximum(values_TN: Floats) -> Bools:
    """Above ten times the largest value so far."""
    largest = np.maximum.accumulate(values_TN, axis=0)
    return np.concatenate([np.zeros((1, values_TN.shape[1]), dtype=bool), values_TN[1:] > 10 * largest[:-1]])


def half_over_running_mean(values_TN: Floats) -> Bools:
    """Above 1.5 times the running mean of absolute values with decay 0.99, which starts at the first value
    (msProbe's AnomalyTurbulence with the threshold 0.5 of its manual, BaseWriterWithAD._update_tag2scalars).
    """
    out = np.zeros(values_TN.shape, dtype=bool)
    mean = np.abs(values_TN[0])
    for step, value in enumerate(values_TN):
        out[step] = value > 1.5 * mean
        mean = 0.99 * mean + 0.01 * np.abs(value)
    return out


RULES: dict[str, Callable[[Floats], Bools]] = {
    "mean + 6 sigma": six_sigma,
    "10 × the maximum": ten_times_maximum,
    "50 % over the running mean": half_over_running_mean,
}


def alarms(recorded: Recorded, rule: str) -> list[tuple[int, int]]:
    """(step, worker) of every alarm, in order of steps; an alarm within ``REST`` steps of the last is the same one."""
    series = [recorded.loss, np.exp(recorded.log_norm)]
    if rule == "mean + 6 sigma":
        series.append(recorded.cosine)
    found: list[tuple[int, int]] = []
    for values_TN in series:
        raised_TN = RULES[rule](np.asarray(values_TN, dtype=np.float64))
        for worker in range(raised_TN.shape[1]):
            last = -REST
            for step in np.flatnonzero(raised_TN[:, worker]).tolist():
                if step - last >= REST:
                    found.append((step, worker))
                last = step
    return sorted(found)
