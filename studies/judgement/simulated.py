"""False alarms of one statistic over millions of simulated healthy steps, up to 1,024 workers, by the code of the
checks.

Each row gives the whole budget to one statistic, evenly over its workers: an alarm is a worker whose detector passes
ln(10,000 N) within a run, so at most one may be expected in 10,000 steps. Letters: T steps, R runs, N workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.exchangeability import log_heights, log_threshold, scores
from trueline.laws.unlike_workers.outliers import Outlier, find_outliers
from trueline.laws.unlike_workers.series import WorkerSeries

Floats = NDArray[np.float64]
Draw = np.random.Generator

STEPS: dict[int, int] = {
    2: 4_000_000,
    3: 2_000_000,
    4: 2_000_000,
    8: 1_500_000,
    32: 500_000,
    128: 200_000,
    1024: 35_000,
}
"""Simulated steps by number of workers, shared evenly by the kinds of noise."""

CHUNK = 1_500_000
"""Worker-steps that are held at a time."""


def gaussian(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Independent normal values."""
    return draw.standard_normal(shape)


def drifting(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Normal values round a level that all workers share: a random walk with jumps, and half of the variance common to
    all workers of a step.
    """
    steps, runs, _ = shape
    walk = np.cumsum(draw.standard_normal((steps, runs, 1)), axis=0)
    jumps = 100 * (draw.random((steps, runs, 1)) < 0.002) * draw.standard_normal((steps, runs, 1))
    return draw.standard_normal(shape) + draw.standard_normal((steps, runs, 1)) + walk + np.cumsum(jumps, axis=0)


def student(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Student noise of 3 degrees of freedom."""
    return draw.standard_t(3, shape)


def cauchy_bursts(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Cauchy noise whose scale, shared by the workers, wanders over orders of magnitude."""
    scale = np.exp(np.cumsum(0.1 * draw.standard_normal((shape[0], shape[1], 1)), axis=0))
    return scale * draw.standard_cauchy(shape)


def skewed(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Lognormal values of σ = 1.5."""
    return np.exp(1.5 * draw.standard_normal(shape))


def rare(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Zeros, but for one value in fifty of 1, 2 or 3: ties nearly everywhere."""
    return (draw.random(shape) < 0.02) * draw.integers(1, 4, shape).astype(np.float64)


def random_spreads(draw: Draw, shape: tuple[int, int, int]) -> Floats:
    """Each worker's spread is drawn anew each step (lognormal σ = 1): some batches are noisier than others."""
    return np.exp(draw.standard_normal(shape)) * draw.standard_normal(shape)


NOISE: dict[str, Callable[[Draw, tuple[int, int, int]], Floats]] = {
    "normal": gaussian,
    "normal, common drift and jumps": drifting,
    "Student, 3 degrees": student,
    "Cauchy, bursts of scale": cauchy_bursts,
    "lognormal, σ = 1.5": skewed,
    "mostly ties": rare,
    "spreads random by worker and step": random_spreads,
}


def first_outlier(loss_TN: Floats) -> Outlier | None:
    """The first outlier among these losses that is worker 0, or one of two of which worker 0 is one."""
    unmeasured_TN = np.full(loss_TN.shape, np.nan)
    ranks = tuple(range(loss_TN.shape[1]))
    series = WorkerSeries(np.arange(len(loss_TN)), ranks, loss_TN, unmeasured_TN, unmeasured_TN)
    return next((one for one in find_outliers(series, AlarmBudget(), "loss") if 0 in one.concerned), None)


def measure(*, quick: bool) -> dict[str, Any]:
    """Alarms by noise and number of workers."""
    rows = [
        _count(name, NOISE[name], workers, num_steps // len(NOISE) // (100 if quick else 1), seed=seed)
        for workers, num_steps in STEPS.items()
        for seed, name in enumerate(NOISE)
    ]
    return {"rows": rows}


def _count(
    name: str, noise: Callable[[Draw, tuple[int, int, int]], Floats], workers: int, num_steps: int, *, seed: int
) -> dict[str, Any]:
    draw = np.random.default_rng([seed, workers])
    length = min(10_000, num_steps, CHUNK // workers)
    runs = max(1, min(CHUNK // (workers * length), num_steps // length))
    line = log_threshold(false_alarms=1.0, weight=1 / workers)
    alarms = steps = 0
    highest = -math.inf
    begin = time.monotonic()
    while steps < num_steps:
        detector = log_heights(scores(noise(draw, (length, runs, workers))))
        peak_RN = detector.max(axis=0)
        alarms += int(np.count_nonzero(peak_RN >= line))
        highest = max(highest, float(peak_RN.max() - line))
        steps += length * runs
    return {
        "noise": name,
        "workers": workers,
        "steps": steps,
        "run_steps": length,
        "alarms": alarms,
        "highest": highest,
        "seconds": round(time.monotonic() - begin, 1),
    }
