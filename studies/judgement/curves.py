"""Delay against the size of a shift and the number of workers, simulated, beside the limits of information.

One worker of N is shifted by d spreads from the first step on, the noise is normal; the statistic has the share of the
budget that the loss has. Two limits: no procedure that alarms once in 100,000 healthy steps, the default budget, can
on average be faster than ln(100,000) / KL, with KL = d²/2 (N - 1)/N nats a step for a normal shift against N - 1
others whose mean is unknown (Lorden 1971); and no test of exchangeability gains more than ln N a step. Letters: T
steps, R runs, N workers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.exchangeability import log_heights, scores
from trueline.schema.plan import FALSE_ALARMS

SHIFTS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
WORKERS = (2, 3, 4, 8, 32, 128, 1024)
RUNS = {128: 20, 1024: 10}
"""Runs of each setting where there are many workers; 40 otherwise."""


def measure(*, quick: bool) -> dict[str, Any]:
    """Median and 90 % point of the delay, and the limits, for every shift and number of workers."""
    rows = []
    for workers in WORKERS:
        runs = 4 if quick else RUNS.get(workers, 40)
        for shift in SHIFTS:
            line = AlarmBudget().log_threshold("loss", among=workers)
            nats = shift**2 / 2 * (workers - 1) / workers
            limit, cap = math.log(10_000 / FALSE_ALARMS) / nats, line / math.log(workers)
            length = int(4 * max(limit, cap)) + 30
            delays, right = _delays(workers, shift, line, length, runs)
            rows.append(
                {
                    "workers": workers,
                    "shift": shift,
                    "found": sum(delay < math.inf for delay in delays),
                    "runs": runs,
                    "right": right,
                    "median": _finite(float(np.median(delays))),
                    "slow": _finite(float(np.quantile(delays, 0.9, method="higher"))),
                    "limit": limit,
                    "cap": cap,
                    "line": line,
                }
            )
    return {"rows": rows}


def _delays(workers: int, shift: float, line: float, length: int, runs: int) -> tuple[list[float], int]:
    draw = np.random.default_rng([workers, round(100 * shift)])
    together = max(1, min(runs, 1_500_000 // (workers * length)))
    delays: list[float] = []
    right = 0
    while len(delays) < runs:
        values_TRN = draw.standard_normal((length, together, workers))
        values_TRN[:, :, 0] += shift
        over_TRN = log_heights(scores(values_TRN)) >= line
        first_RN = np.where(over_TRN.any(0), over_TRN.argmax(0) + 1.0, math.inf)
        for first_N in first_RN[: runs - len(delays)]:
            delays.append(float(first_N.min()))
            right += bool(first_N[0] < first_N[1:].min())
    return delays, right


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
