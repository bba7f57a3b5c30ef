"""All that is concluded and measured of Runs, for a page to show."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueline.analyze.check_run import CheckReport, check
from trueline.analyze.compared_ranks import data_parallel_ranks
from trueline.analyze.workers.dispersion import (
    ChanceBand,
    CosineMatrix,
    Dispersion,
    chance_band,
    cosine_matrices,
    dispersion,
    steps_with_cosines,
)
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run

MAX_MATRIX_RANKS = 64
"""Workers up to which every pair is compared."""
MAX_MATRIX_STEPS = 24
"""Steps whose cosines are taken; of more, as many evenly spaced ones with the first and the last."""
_BANDED = ("loss_std", "norm_std", "norm_cv")


@dataclass(frozen=True, slots=True)
class RunResults:
    """What the checks found in a Run, the dispersion of its workers at each step, the bands of chance that are known
    (by the name of a field of ``dispersion``), and the cosines between its workers, or why there are none.
    """

    run: Run
    report: CheckReport
    dispersion: Dispersion
    bands: Mapping[str, ChanceBand]
    matrices: tuple[CosineMatrix, ...]
    matrices_absent: str


def results_of(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[RunResults]:
    """Every Run of ``paths`` (one may stand alone) and those of its further groups of ranks and models, checked and
    measured. Raises
    ``RunError``, ``InputError``.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not several:
        raise InputError(
            "A report needs at least one Run. Pass a directory that trueline.watch or `trueline run` wrote."
        )
    opened = ([run, *map(Run, [*run.groups, *run.models.values()])] for run in map(Run, several))
    return [_results(each) for runs in opened for each in runs]


def _results(run: Run) -> RunResults:
    report, dispersions = check(run), dispersion(run)
    bands = {name: chance_band(getattr(dispersions, name), len(dispersions.ranks)) for name in _BANDED}
    matrices, absent = _matrices(run)
    known = {name: band for name, band in bands.items() if band is not None}
    return RunResults(run, report, dispersions, known, matrices, absent)


def _matrices(run: Run) -> tuple[tuple[CosineMatrix, ...], str]:
    """At most ``MAX_MATRIX_STEPS`` matrices, evenly spaced with the first and the last; or none and why."""
    ranks = data_parallel_ranks(run)
    if len(ranks) < 2:
        return (), "One worker: there are no two gradients to compare."
    if len(ranks) > MAX_MATRIX_RANKS:
        return (), f"{len(ranks)} workers are too many for a table; the mean over all pairs is drawn above."
    steps = steps_with_cosines(run)
    if not steps.size:
        return (
            (),
            "No step has a sketch of every worker (Plan.matrix_every), so there are no cosines between two of them.",
        )
    chosen = np.unique(np.linspace(0, steps.size - 1, min(MAX_MATRIX_STEPS, steps.size)).round().astype(np.intp))
    try:
        return tuple(cosine_matrices(run, steps[chosen].tolist())), ""
    except CannotTell as error:
        return (), f"The cosines cannot be computed: {error}."
