"""Does the 95 % interval of an effect hold the truth, although steps were selected by the evidence they hold?

One worker's loss is shifted by d from step ``START`` on; the noise is Student's with 3 degrees of freedom, the spread
of the workers 1. Letters: T steps, N workers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trueline.analyze.checks import worker_loss_outlier
from trueline.analyze.promise import Promise
from trueline.analyze.series import WorkerSeries

RUNS = 150
START = 50
SETTINGS = [(workers, shift, after) for workers in (2, 4, 8) for shift, after in ((1.0, 60), (1.0, 300), (3.0, 100))]
"""Workers, shift, and steps after the start: 60 leave few or no steps after an alarm."""


def measure(*, quick: bool) -> dict[str, Any]:
    """How many intervals hold the shift, by setting, and the mean of the estimates."""
    rows = []
    for workers, shift, after in SETTINGS:
        draw = np.random.default_rng([workers, int(shift), after])
        estimates, held = [], 0
        for _ in range(10 if quick else RUNS):
            found = _found(draw.standard_t(3, (START + after, workers)), shift)
            if found is not None:
                estimate, low, high = found
                estimates.append(estimate)
                held += low <= shift <= high
        mean = float(np.mean(estimates)) if estimates else math.nan
        told = {"found": len(estimates), "held": held, "mean": mean}
        rows.append({"workers": workers, "shift": shift, "after": after, "runs": 10 if quick else RUNS} | told)
    return {"rows": rows}


def _found(loss_TN: np.ndarray, shift: float) -> tuple[float, float, float] | None:
    """Estimate and interval of the first finding, or None."""
    loss_TN = loss_TN + 10
    loss_TN[START:, 0] += shift
    nothing_TN = np.full(loss_TN.shape, np.nan)
    ranks = tuple(range(loss_TN.shape[1]))
    series = WorkerSeries(np.arange(len(loss_TN)), ranks, loss_TN, nothing_TN, nothing_TN)
    told = [finding for finding in worker_loss_outlier.judge(series, Promise()) if 0 in finding.ranks]
    if not told or told[0].evidence["interval"] is None:
        return None
    low, high = told[0].evidence["interval"]
    return float(told[0].measured or 0.0), low, high
