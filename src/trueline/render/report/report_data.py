"""One Run as the report needs it: all that is read from the store and from the analysis, in one place.

Letters: T steps, N ranks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.analyze.check_run import CheckReport, check
from trueline.analyze.evidence import data_parallel_ranks
from trueline.analyze.workers.dispersion import (
    ChanceBand,
    CosineMatrix,
    chance_band,
    cosine_matrices,
    dispersion,
    steps_with_cosines,
)
from trueline.render.charts.series import Series
from trueline.render.report.verdict import Verdict, verdict
from trueline.render.wording import ranks_words
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run

MAX_MATRIX_RANKS = 64
"""Workers up to which every pair is shown."""
MAX_MATRIX_STEPS = 24
"""Steps whose matrix goes into the file; of more, as many evenly spaced ones with the first and the last."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something to draw over steps: a key, what to call it, and what it means in a few words."""

    key: str
    title: str
    meaning: str
    decimals: int | None = None
    """Of read-outs; None for four significant digits."""


WORKER_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("loss", "Loss", "each worker’s own, before any averaging"),
    Quantity("grad_norm", "Gradient norm", "L2, each worker’s own gradient before it is reduced"),
    Quantity("cosine_others", "Gradient direction", "cosine to the mean gradient of the other workers, sketched", 3),
)
"""Keys are columns of ``schema.workers``."""

DISPERSION_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("loss_std", "Loss: standard deviation", "over workers, N − 1"),
    Quantity("loss_range", "Loss: range", "largest less smallest worker"),
    Quantity("grad_norm_std", "Gradient norm: standard deviation", "over workers, N − 1"),
    Quantity("grad_norm_range", "Gradient norm: range", "largest less smallest worker"),
    Quantity("grad_norm_cv", "Gradient norm: coefficient of variation", "standard deviation over mean"),
    Quantity("cosine_mean", "Gradient direction: mean pairwise cosine", "1 the same, 0 unrelated", 3),
)


@dataclass(frozen=True, slots=True)
class Dispersion:
    """How far workers lie apart at each step, [T], NaN where not measured, and the band of chance if one is known."""

    values_T: Floats
    band: ChanceBand | None


@dataclass(frozen=True, slots=True)
class RunReading:
    """What the report shows of one Run."""

    name: str
    run: Run
    report: CheckReport
    verdict: Verdict
    workers: dict[str, Series]
    dispersions: dict[str, Dispersion]
    matrices: tuple[CosineMatrix, ...]
    matrix_absent: str
    notes: tuple[str, ...]

    @property
    def step_range(self) -> tuple[int, int] | None:
        """First and last step with a row; None for a Run without rows."""
        return (int(self.run.steps[0]), int(self.run.steps[-1])) if self.run.steps.size else None

    @property
    def flagged_ranks(self) -> tuple[int, ...]:
        """Ranks that an error or warning names, unless it names all of them."""
        everyone = set(self.run.ranks)
        named = {
            rank
            for finding in self.report.findings
            if finding.severity != "info" and set(finding.ranks) != everyone
            for rank in finding.ranks
        }
        return tuple(sorted(named))


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> list[RunReading]:
    """Every Run of a report and those of its further models, checked and measured, under names that differ. Raises
    ``RunError``, ``InputError``.
    """
    if not paths:
        raise InputError(
            "A report needs at least one Run. Pass a directory that trueline.watch or `trueline run` wrote."
        )
    runs = [each for run in map(Run, paths) for each in (run, *map(Run, run.models.values()))]
    names = distinct_names([run.path for run in runs])
    return [_reading(run, name) for run, name in zip(runs, names, strict=True)]


def _reading(run: Run, name: str) -> RunReading:
    report = check(run)
    steps = run.steps
    workers: dict[str, Series] = {}
    for quantity in WORKER_QUANTITIES:
        values_TN, measured_TN = run.pivot(quantity.key)
        workers[quantity.key] = Series(steps, values_TN, measured_TN, tuple(run.ranks))
    matrices, absent = _matrices(run)
    return RunReading(
        name=name,
        run=run,
        report=report,
        verdict=verdict(report),
        workers=workers,
        dispersions=_dispersions(run),
        matrices=matrices,
        matrix_absent=absent,
        notes=tuple(dict.fromkeys(note for note in [*report.notes, *_rank_notes(run)] if note not in run.problems)),
    )


def distinct_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, with as many parts before it as tell it from other paths; repeats are numbered."""
    parts = {path: [part for part in path.replace("\\", "/").split("/") if part] or ["Run"] for path in paths}
    short = {path: each[-1] for path, each in parts.items()}
    for depth in range(2, max(map(len, parts.values())) + 1):
        taken = list(short.values())
        short = {
            path: "/".join(parts[path][-depth:]) if taken.count(name) > 1 else name for path, name in short.items()
        }
    names = [short[path] for path in paths]
    places = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [f"{name} ({place})" if names.count(name) > 1 else name for name, place in zip(names, places, strict=True)]


def _rank_notes(run: Run) -> list[str]:
    """Notes of the ranks, each once with who left it."""
    by_note: dict[str, list[int]] = {}
    for rank, env in sorted(run.env.items()):
        for note in env.notes:
            by_note.setdefault(note, []).append(rank)
    return [f"{ranks_words(ranks, run.ranks)}: {note}" for note, ranks in by_note.items()]


def _dispersions(run: Run) -> dict[str, Dispersion]:
    """Every dispersion that two or more workers allow; standard deviations have the band that chance gives them."""
    measured = dispersion(run)
    if len(measured.ranks) < 2:
        return {}
    values = {
        "loss_std": measured.loss_std,
        "loss_range": measured.loss_range,
        "grad_norm_std": measured.norm_std,
        "grad_norm_range": measured.norm_range,
        "grad_norm_cv": measured.norm_cv,
        "cosine_mean": measured.cosine_mean,
    }
    banded = ("loss_std", "grad_norm_std", "grad_norm_cv")
    return {
        key: Dispersion(values_T, chance_band(values_T, len(measured.ranks)) if key in banded else None)
        for key, values_T in values.items()
    }


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
        return (), f"The cosines cannot be told: {error}."
