"""Autocorrelated ranks: false alarms and delays where what a worker reads next depends on what it has just read.

Trainings on documents in order, healthy and with faults, and simulated noise with memory, each judged by all that was
recorded. Letters: T steps, R runs, N workers.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from studies.judgement import healthy
from studies.judgement.cache import Job, said, train_all
from studies.judgement.faults import FAULTS
from studies.judgement.judging import judged, series_of
from studies.judgement.simulated import Draw, Floats
from studies.judgement.workloads import OUTSIDE

from trueline.judge.stats.autocorrelation import dependence_of
from trueline.judge.stats.exchangeability import log_heights, log_threshold, scores

SEEDS, START, STEPS = 4, 500, 1500
"""Of each fault: trainings, the step at which it begins, and steps in all."""

FAULTY = ("loss × 1.1", "loss × 2", "20% of the labels random")
WORKERS = 8

CUTS = (100, 250, 500, 1000)
"""Steps after which the healthy trainings are judged as well."""

SIMULATED = 100_000
"""Steps of each kind of noise, number of workers and length of the Run."""

SIZES: tuple[tuple[int, int], ...] = ((2, 2000), (8, 200), (8, 2000), (8, 10_000), (32, 2000))
"""Workers, and steps of a Run."""


def persistent(draw: Draw, shape: tuple[int, int, int], *, memory: float) -> Floats:
    """Normal values each of whose workers remembers its own last value with weight ``memory`` (an autoregression)."""
    noise = draw.standard_normal(shape)
    out = np.empty(shape)
    out[0] = noise[0]
    for step in range(1, shape[0]):
        out[step] = memory * out[step - 1] + math.sqrt(1 - memory**2) * noise[step]
    return out


def documents(draw: Draw, shape: tuple[int, int, int], *, length: float, share: float) -> Floats:
    """Normal values of which ``share`` of the variance stays as long as a document, whose lengths are geometric."""
    level = draw.standard_normal(shape[1:])
    out = np.empty(shape)
    for step in range(shape[0]):
        level = np.where(draw.random(shape[1:]) < 1 / length, draw.standard_normal(shape[1:]), level)
        out[step] = level
    return math.sqrt(share) * out + math.sqrt(1 - share) * draw.standard_normal(shape)


NOISE: dict[str, Callable[[Draw, tuple[int, int, int]], Floats]] = {
    **{f"autoregression {memory:g}": functools.partial(persistent, memory=memory) for memory in (0.2, 0.5, 0.8, 0.95)},
    "documents of 20 steps, nothing else": functools.partial(documents, length=20, share=1.0),
    "documents of 50 steps, 15 % of the variance": functools.partial(documents, length=50, share=0.15),
    "documents of 200 steps, 30 % of the variance": functools.partial(documents, length=200, share=0.3),
    "documents of 200 steps, 2 % of the variance": functools.partial(documents, length=200, share=0.02),
    "none": functools.partial(persistent, memory=0.0),
}


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Alarms in healthy trainings in order and in simulations, delays of faults, and how long values correlate."""
    trainings = healthy.alarms_in(healthy.jobs(OUTSIDE, quick=quick), folder)
    sizes = ((8, 200),) if quick else SIZES
    rows = [
        _count(name, workers, steps, (4_000 if quick else SIMULATED), seed=seed)
        for seed, name in enumerate(NOISE)
        for workers, steps in sizes
    ]
    setting = {"workers": WORKERS, "start": START}
    found = {"simulated": rows, "power": _power(folder, quick), "setting": setting, "cut": cut(folder, quick=quick)}
    return trainings | found


def cut(folder: Path, *, quick: bool) -> list[dict[str, int]]:
    """Alarms under the default budget in what there is of the healthy trainings in order after ``CUTS`` steps."""
    jobs = healthy.jobs(OUTSIDE, quick=quick)
    return [
        {
            "length": length,
            "runs": len(jobs),
            "alarms": sum(len(judged(series_of(job.recorded(folder), num_steps=length))) for job in jobs),
        }
        for length in CUTS[: 1 if quick else None]
    ]


def _count(name: str, workers: int, length: int, num_steps: int, *, seed: int) -> dict[str, Any]:
    """Alarms under three budgets of runs of ``length`` steps, with the ratio that was measured on each."""
    draw = np.random.default_rng([seed, workers, length])
    runs = max(1, min(1_500_000 // (workers * length), num_steps // length))
    lines = {f"{budget:g}": log_threshold(false_alarms=budget, weight=1 / workers) for budget in healthy.PROMISES}
    alarms, before, ratios, steps = dict.fromkeys(lines, 0), dict.fromkeys(lines, 0), [], 0
    while steps < num_steps:
        values = NOISE[name](draw, (length, runs, workers))
        ratio_R = np.array([dependence_of(values[:, run]).ratio for run in range(runs)])
        z = scores(values)
        peak_RN = log_heights(z, dependence_N=ratio_R[:, None]).max(axis=0)
        plain_RN = log_heights(z).max(axis=0)
        for budget, line in lines.items():
            alarms[budget] += int(np.count_nonzero(peak_RN >= line))
            before[budget] += int(np.count_nonzero(plain_RN >= line))
        ratios += ratio_R.tolist()
        steps += length * runs
    print(name, workers, length, alarms, before, file=sys.stderr, flush=True)
    quantiles = [float(one) for one in np.quantile(ratios, [0.1, 0.5, 0.9])]
    facts = {"noise": name, "workers": workers, "length": length, "steps": steps}
    return facts | {"alarms": alarms, "without": before, "ratios": quantiles}


def _power(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """For each fault the steps from its start to the alarm, None where there is none."""
    jobs = {
        name: [
            Job(OUTSIDE[0], WORKERS, 70_000 + seed, STEPS, FAULTS[name], START) for seed in range(1 if quick else SEEDS)
        ]
        for name in FAULTY[: 1 if quick else None]
    }
    train_all([job for each in jobs.values() for job in each], folder)
    return [
        {"fault": name, "runs": [said(job, folder, "memory", functools.partial(_said, job, folder)) for job in each]}
        for name, each in jobs.items()
    ]


def _said(job: Job, folder: Path) -> dict[str, Any]:
    """When the run so far first alarms, looked at after 4, 5, 6, 7, 9 ... steps, and what the whole run says."""
    recorded = job.recorded(folder)
    delay = None
    for after in sorted({min(round(4 * 1.2**power), STEPS - START) for power in range(40)}):
        told = judged(series_of(recorded, num_steps=START + after))
        if any(one.crossed >= START for one in told):
            delay = after
            break
    at_end = [asdict(one) for one in judged(series_of(recorded))]
    return {"delay": delay, "early": sum(one["crossed"] < START for one in at_end), "told": at_end}
