"""The loss of each step of a Run, as a person reads it: the mean over ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueline.store.reader import Run


def mean_losses(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The steps [T] that have a loss, and the mean [T] of their losses over ranks: not finite where one is not."""
    losses_TN, measured_TN = run.pivot("loss")
    counts_T = measured_TN.sum(axis=1)
    seen_T = counts_T > 0
    sums_T = np.where(measured_TN, losses_TN, 0.0).sum(axis=1)
    return run.steps[seen_T], sums_T[seen_T] / counts_T[seen_T]
