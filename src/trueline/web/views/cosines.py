"""The cosines between the gradients of all workers at a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.dispersion import cosine_matrices, steps_with_cosines
from trueline.schema.errors import CannotTell
from trueline.web.answers import Arrays
from trueline.web.watched_run import WatchedRun

MAX_RANKS = 1024
"""Workers up to which every pair is compared."""


@dataclass(frozen=True, slots=True)
class Cosines:
    """With the arrays ``cosine`` and ``error`` (one standard error) float32 [N, N]; both are empty, and ``absent`` says
    why, where there are none. ``step`` is the one nearest to what was asked for.
    """

    step: int | None
    ranks: tuple[int, ...]
    exact: bool
    absent: str


def cosines_of(watched: WatchedRun, step: int = 0) -> Arrays:
    """The cosines at the step nearest to ``step`` at which every worker left a sketch of its gradient."""
    ranks = data_parallel_ranks(watched.run)
    if len(ranks) < 2:
        return _no_cosines("One worker: there are no two gradients to compare.")
    if len(ranks) > MAX_RANKS:
        return _no_cosines(f"Each of {MAX_RANKS} workers at most is compared with each other; there are {len(ranks)}.")
    steps = steps_with_cosines(watched.run)
    if not steps.size:
        return _no_cosines("No step has a sketch of every worker (matrix_every in the plan), so there are no cosines.")
    nearest = int(steps[np.abs(steps - step).argmin()])
    try:
        matrix = cosine_matrices(watched.run, [nearest])[0]
    except CannotTell as error:
        return _no_cosines(f"The cosines cannot be computed: {error}.")
    return Arrays(
        Cosines(nearest, matrix.ranks, matrix.exact, ""),
        {"cosine": matrix.cosines.astype(np.float32), "error": matrix.standard_errors.astype(np.float32)},
    )


def _no_cosines(why: str) -> Arrays:
    empty = np.empty((0, 0), dtype=np.float32)
    return Arrays(Cosines(None, (), False, why), {"cosine": empty, "error": empty})
