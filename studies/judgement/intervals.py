"""Does the 95 % interval of an effect hold the truth, although steps were selected by the evidence they hold?

One worker's loss is shifted by d from step ``START`` on; the noise is Student's with 3 degrees of freedom, the spread
of the workers 1. Letters: T steps, N workers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from studies.judgement.simulated import first_outlier

from trueline.judge.stats.intervals import mean_difference
from trueline.laws.unlike_workers.outliers import effect_of

RUNS = 150
START = 50
SETTINGS = [(workers, shift, after) for workers in (2, 4, 8) for shift, after in ((1.0, 60), (1.0, 300), (3.0, 100))]
"""Workers, shift, and steps after the start: 60 leave few or no steps after an alarm."""


def measure(*, quick: bool) -> dict[str, Any]:
    """How many intervals hold the shift, by setting, and the mean of the estimates; the intervals that are reported,
    and plain ones over all steps of the evidence, with neither the steps up to the alarm left out nor a wider error.
    """
    rows = []
    for workers, shift, after in SETTINGS:
        draw = np.random.default_rng([workers, int(shift), after])
        estimates, held, plain = [], 0, 0
        for _ in range(10 if quick else RUNS):
            found = _found(draw.standard_t(3, (START + after, workers)), shift)
            if found is not None:
                estimates.append(found.value)
                held += found.low <= shift <= found.high
                plain += found.plain_low <= shift <= found.plain_high
        mean = float(np.mean(estimates)) if estimates else math.nan
        told = {"found": len(estimates), "held": held, "plain": plain, "mean": mean}
        rows.append({"workers": workers, "shift": shift, "after": after, "runs": 10 if quick else RUNS} | told)
    return {"rows": rows}


class _Found(NamedTuple):
    """An estimate, its reported interval, and the plain one."""

    value: float
    low: float
    high: float
    plain_low: float
    plain_high: float


def _found(loss_TN: np.ndarray, shift: float) -> _Found | None:
    """What is said of the first outlier that is, or may be, worker 0; or None."""
    loss_TN = loss_TN + 10
    loss_TN[START:, 0] += shift
    outlier = first_outlier(loss_TN)
    if outlier is None:
        return None
    reported = effect_of(outlier, loss_TN)
    low, high = reported.interval()
    plain = mean_difference(loss_TN[outlier.first : outlier.last + 1], outlier.workers, outlier.peers).interval()
    return _Found(reported.value, low, high, *plain) if math.isfinite(low) else None
