"""One Run as the report shows it: its results under a name, as series to draw.

Letters: T steps, N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trueline.render.charts.downsampling import Series
from trueline.render.report.page_summary import Summary, summary
from trueline.schema.text.words import ranks_text

if TYPE_CHECKING:
    from trueline.analyze.check_run import CheckReport
    from trueline.analyze.results import RunResults
    from trueline.analyze.workers.dispersion import ChanceBand, CosineMatrix
    from trueline.store.reader import Run

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
    """How far apart workers are at each step, [T], NaN where not measured, and the band of chance if one is known."""

    values_T: Floats
    band: ChanceBand | None


@dataclass(frozen=True, slots=True)
class RunReading:
    """What the report shows of one Run."""

    name: str
    run: Run
    report: CheckReport
    summary: Summary
    workers: dict[str, Series]
    dispersions: dict[str, Dispersion]
    matrices: tuple[CosineMatrix, ...]
    matrices_absent: str
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


def readings_of(results: Sequence[RunResults]) -> list[RunReading]:
    """The Runs of a report under names that differ."""
    names = distinct_names([each.run.path for each in results])
    return [_reading(each, name) for each, name in zip(results, names, strict=True)]


def _reading(results: RunResults, name: str) -> RunReading:
    run, report = results.run, results.report
    workers: dict[str, Series] = {}
    for quantity in WORKER_QUANTITIES:
        values_TN, measured_TN = run.pivot(quantity.key)
        workers[quantity.key] = Series(run.steps, values_TN, measured_TN, tuple(run.ranks))
    return RunReading(
        name=name,
        run=run,
        report=report,
        summary=summary(report),
        workers=workers,
        dispersions=_dispersions(results),
        matrices=results.matrices,
        matrices_absent=results.matrices_absent,
        notes=tuple(dict.fromkeys(note for note in [*report.notes, *rank_notes(run)] if note not in run.problems)),
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


def rank_notes(run: Run) -> list[str]:
    """Notes of the ranks, each once with who left it."""
    by_note: dict[str, list[int]] = {}
    for rank, env in sorted(run.env.items()):
        for note in env.notes:
            by_note.setdefault(note, []).append(rank)
    return [f"{ranks_text(ranks, all_ranks=run.ranks, dash='–')}: {note}" for note, ranks in by_note.items()]


def _dispersions(results: RunResults) -> dict[str, Dispersion]:
    """Every dispersion that two or more workers allow; standard deviations have the band that chance gives them."""
    measured, bands = results.dispersion, results.bands
    if len(measured.ranks) < 2:
        return {}
    return {
        "loss_std": Dispersion(measured.loss_std, bands.get("loss_std")),
        "loss_range": Dispersion(measured.loss_range, None),
        "grad_norm_std": Dispersion(measured.norm_std, bands.get("norm_std")),
        "grad_norm_range": Dispersion(measured.norm_range, None),
        "grad_norm_cv": Dispersion(measured.norm_cv, bands.get("norm_cv")),
        "cosine_mean": Dispersion(measured.cosine_mean, None),
    }
