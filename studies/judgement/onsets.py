"""Does the interval of the first step hold the truth, and how far off is the step that is told?

One worker's loss is shifted by d spreads from some step on, in normal noise or Student's with 3 degrees of freedom, and
the run is judged as a whole. Letters: T steps, N workers.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from studies.judgement.simulated import first_outlier

RUNS = 40
AFTER = 120
SETTINGS = list(itertools.product((2, 3, 4, 8), (0, 25, 200), (1.0, 3.0, 10.0), ("normal", "t(3)")))
"""Workers, first step of the shift, its size, and the law of the noise."""


def measure(*, quick: bool) -> dict[str, Any]:
    """By setting: runs in which the worker was found (or one of two), intervals that hold the first step, their median
    width, and the mean distance of the step that is told.
    """
    rows: list[dict[str, Any]] = []
    for place, (workers, first, shift, law) in enumerate(SETTINGS):
        draw = np.random.default_rng([20, place])
        found = [_found(draw, workers, first, shift, law) for _ in range(10 if quick else RUNS)]
        told = [one for one in found if one is not None]
        rows.append(
            {"workers": workers, "first": first, "shift": shift, "law": law, "runs": len(found), "found": len(told)}
            | {"held": sum(low <= first <= high for _, low, high in told)}
            | {"width": float(np.median([high - low for _, low, high in told])) if told else None}
            | {"off": float(np.mean([abs(at - first) for at, _, _ in told])) if told else None}
        )
    return {"rows": rows}


def _found(draw: np.random.Generator, workers: int, first: int, shift: float, law: str) -> tuple[int, int, int] | None:
    """The step that is told and its interval; None where worker 0 is not concerned."""
    shape = (first + AFTER, workers)
    loss_TN = 10 + (draw.standard_normal(shape) if law == "normal" else draw.standard_t(3, shape))
    loss_TN[first:, 0] += shift
    outlier = first_outlier(loss_TN)
    return None if outlier is None else (outlier.first, *outlier.onset_bounds)
