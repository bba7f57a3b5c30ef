"""Measurement of the differences of Runs that should agree, site by site: a Tolerance.

Such Runs are the same job twice, with another order of reduction, on other hardware, or with inputs that were perturbed
by a rounding. Letters: P pairs of Runs, K keys (a site at a step).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trueline.comparison.arrange import Arrangement, arrange
from trueline.comparison.compare import Progress
from trueline.comparison.judgement.history.loss_gap import Curve, loss_curve
from trueline.comparison.judgement.values.distance import MAX_BYTES, Distance
from trueline.comparison.judgement.values.floors import kind_key, site_key
from trueline.comparison.judgement.values.measured_distance import measure_with
from trueline.comparison.match.align import Alignment
from trueline.comparison.match.names import NameMap
from trueline.judge.recorded.step_values import Value
from trueline.schema.errors import CannotTell, InputError
from trueline.schema.files.tolerance import QUANTILE, Floors, KindFloor, Tolerance
from trueline.schema.text.words import counted
from trueline.store.reader import Run

Floats = NDArray[np.float64]
SiteAtStep = tuple[str, int]
"""Key of a site, and a step."""

DIFFERENT_MODELS = 0.5
"""Fraction of common values below which two Runs are of different models."""
MOST_LOSSES = 1000
"""Most steps whose losses a Tolerance contains."""
DIFFERENT_WEIGHTS = 0.1
"""Largest relative difference of weights at the start of the first step; with more, the Runs started differently."""


@dataclass
class _Distances:
    """Distances of the pairs so far.

    ``by_pair`` has a distance for each site and step of each pair; ``nonfinite`` has the full sites where NaN or
    infinities differ.
    """

    by_pair: list[dict[SiteAtStep, float]] = field(default_factory=list[dict[SiteAtStep, float]])
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    nonfinite: dict[SiteAtStep, str] = field(default_factory=dict[SiteAtStep, str])
    inexact: int = 0


def calibrate(
    runs: Sequence[str | os.PathLike[str] | Run],
    *,
    names: NameMap | None = None,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Tolerance:
    """The Tolerance that all pairs of these Runs give; the arguments are those of ``compare``.

    Raises ``InputError`` for fewer than two Runs, one Run twice, or Runs that cannot be expected to agree (different
    models, other weights or other samples as the first step begins), ``RunError`` where there is no Run,
    ``AlignmentError`` where nothing aligns, ``CannotTell`` where two Runs have recorded no numbers in common.
    """
    opened = _open_runs(runs)
    pairs = list(combinations(opened, 2))
    distances = _Distances()
    measure = measure_with(max_bytes)
    for num_done, (run, ref) in enumerate(pairs):
        arrangements = arrange(run, ref, steps=steps, ranks=ranks, names=names)
        distances.by_pair.append({})
        for index, arrangement in enumerate(arrangements):
            if progress is not None:
                progress(num_done * len(arrangements) + index, len(pairs) * len(arrangements))
            _measure_step(distances, arrangement, measure, first=arrangement.step == arrangements[0].step)
        if not set(distances.by_pair[-1]) - set(distances.nonfinite):
            raise CannotTell(
                f"'{run.path}' and '{ref.path}' have no numbers in common to measure. Record with depth = \"stats\" "
                "or more."
            )
    damage = [f"{side.path}: {problem}" for side in opened for problem in side.problems]
    return _make_tolerance(distances, [run.path for run in opened], damage, [loss_curve(run) for run in opened])


def _open_runs(runs: Sequence[str | os.PathLike[str] | Run]) -> list[Run]:
    opened = [run if isinstance(run, Run) else Run(os.fspath(run)) for run in runs]
    if len(opened) < 2:
        path_text = f" ('{opened[0].path}')" if opened else ""
        raise InputError(
            f"Calibrating takes two or more Runs that should agree, and {len(opened)} "
            f"{'was' if len(opened) == 1 else 'were'} given{path_text}. Record the same job again and pass both."
        )
    for first, second in combinations(opened, 2):
        if os.path.realpath(first.path) == os.path.realpath(second.path):
            raise InputError(f"'{first.path}' and '{second.path}' are the same Run. Pass Runs of different jobs.")
    return opened


def _measure_step(
    distances: _Distances,
    arrangement: Arrangement,
    measure: Callable[[Value, Value], Distance],
    *,
    first: bool,
) -> None:
    """Measure each pair of values of a step once, and add the distance at every site of the two."""
    alignment = arrangement.read()
    labels = alignment.mine.label, alignment.theirs.label
    _require_one_model(alignment, labels)
    distance_by_roots: dict[tuple[int, int], Distance] = {}
    before_model = first
    for pair in alignment.pairs:
        if pair.mine is None or pair.theirs is None:
            continue
        roots = pair.mine.root, pair.theirs.root
        distance = distance_by_roots.get(roots)
        if distance is None:
            distance = distance_by_roots[roots] = measure(pair.mine, pair.theirs)
        if first:
            _require_equal_start(pair.mine, distance, labels, is_input=before_model)
        before_model = before_model and not pair.mine.in_model
        _add_distance(distances, pair.mine, pair.theirs, distance)


def _add_distance(distances: _Distances, value: Value, ref_value: Value, distance: Distance) -> None:
    site = site_key(ref_value)
    key = site, ref_value.site.step
    if distance.nonfinite_differ:
        distances.nonfinite.setdefault(key, str(ref_value.site))
        return
    if distance.rel is None or not np.isfinite(distance.rel):
        return
    by_key = distances.by_pair[-1]
    by_key[key] = max(by_key.get(key, 0.0), distance.rel)
    distances.kinds[site] = kind_key(value, ref_value)
    distances.inexact += distance.how != "tensor" and not distance.equal


def _require_one_model(alignment: Alignment, labels: tuple[str, str]) -> None:
    common = sum(pair.mine is not None and pair.theirs is not None for pair in alignment.pairs)
    if common < DIFFERENT_MODELS * len(alignment.pairs):
        raise InputError(
            f"'{labels[0]}' and '{labels[1]}' have {common:,} of {len(alignment.pairs):,} recorded values in common: "
            "they are of different models, or were recorded under different Plans. Pass Runs of one job."
        )


def _require_equal_start(value: Value, distance: Distance, labels: tuple[str, str], *, is_input: bool) -> None:
    """Raise ``InputError`` for Runs that start with different weights or samples."""
    advice = "Runs that should agree have one seed (trueline.seed_all), one checkpoint and one order of samples."
    if value.site.phase == "param" and (distance.rel or 0.0) > DIFFERENT_WEIGHTS:
        raise InputError(
            f"'{labels[0]}' and '{labels[1]}' begin with different weights: '{value.site.name}' differs by "
            f"{distance.rel:.2g} of its norm at step {value.site.step}. {advice}"
        )
    if is_input and value.site.phase == "fwd" and "int" in value.dtype and distance.equal is False:
        raise InputError(
            f"'{labels[0]}' and '{labels[1]}' were given different samples: '{value.site}' differs, and it is made of "
            f"whole numbers. {advice}"
        )


def _make_tolerance(
    distances: _Distances, paths: Sequence[str], damage: Sequence[str], curves: Sequence[Curve]
) -> Tolerance:
    keys = sorted({key for by_key in distances.by_pair for key in by_key} - set(distances.nonfinite))
    distances_PK = np.array([[by_key.get(key, np.nan) for key in keys] for by_key in distances.by_pair])
    floor_K = np.nanmax(distances_PK, axis=0)
    steps = sorted({step for _, step in keys})
    by_kind = _indices_by_kind(keys, distances.kinds)
    sites: dict[str, list[float | None]] = {}
    loss_steps = _thinned(sorted(set(curves[0]).intersection(*curves[1:])))
    for (site, step), floor in zip(keys, floor_K.tolist(), strict=True):
        sites.setdefault(site, [None] * len(steps))[steps.index(step)] = floor
    return Tolerance(
        runs=tuple(paths),
        pairs=len(distances.by_pair),
        how="statistics" if distances.inexact else "tensor",
        steps=tuple(steps),
        spread=_spread(distances_PK, list(by_kind.values()), len(paths)),
        kinds=_kind_floors(floor_K, by_kind, steps),
        sites={site: tuple(floors) for site, floors in sites.items()},
        loss_steps=tuple(loss_steps),
        losses=tuple(tuple(curve[step] for step in loss_steps) for curve in curves) if loss_steps else (),
        notes=(*_notes(distances, floor_K), *damage),
    )


def _thinned(steps: Sequence[int]) -> Sequence[int]:
    """Thin steps out to about ``MOST_LOSSES``: the first ones, and then some with even gaps."""
    rest = steps[MOST_LOSSES // 2 :]
    return [*steps[: MOST_LOSSES // 2], *rest[:: max(-(-len(rest) // (MOST_LOSSES // 2)), 1)]]


def _indices_by_kind(keys: Sequence[SiteAtStep], kinds: dict[str, str]) -> dict[tuple[str, int], list[int]]:
    """Indices of the keys of each kind at each step."""
    indices: dict[tuple[str, int], list[int]] = defaultdict(list)
    for k, (site, step) in enumerate(keys):
        indices[kinds[site], step].append(k)
    return dict(indices)


def _kind_floors(
    floor_K: Floats, by_kind: dict[tuple[str, int], list[int]], steps: Sequence[int]
) -> dict[str, KindFloor]:
    def summarize(kind: str, statistic: Callable[[Floats], float]) -> Floors:
        return tuple(statistic(floor_K[by_kind[kind, step]]) if (kind, step) in by_kind else None for step in steps)

    return {
        kind: KindFloor(
            count=tuple(len(by_kind.get((kind, step), ())) for step in steps),
            median=summarize(kind, lambda floors: float(np.median(floors))),
            high=summarize(kind, lambda floors: float(np.quantile(floors, QUANTILE, method="higher"))),
            largest=summarize(kind, lambda floors: float(floors.max())),
        )
        for kind in sorted({kind for kind, _ in by_kind})
    }


def _spread(distances_PK: Floats, kinds: Sequence[list[int]], num_runs: int) -> float | None:
    """``Tolerance.spread``: each Run is left out in turn, and its distances divided by those of the others."""
    if num_runs < 3:
        return None
    largest = 0.0
    pairs = list(combinations(range(num_runs), 2))
    for run in range(num_runs):
        own_P = np.array([run in pair for pair in pairs])
        own_K, others_K = (np.fmax.reduce(distances_PK[mask], axis=0) for mask in (own_P, ~own_P))
        for indices in kinds:
            measured = others_K[indices][~np.isnan(others_K[indices])]
            if len(measured):
                others_K[indices] = np.fmax(others_K[indices], np.median(measured))
        over_K = own_K > 0
        if (others_K[over_K] == 0).any():
            return None
        largest = float(np.nanmax(own_K[over_K] / others_K[over_K], initial=largest))
    return largest


def _notes(distances: _Distances, floor_K: Floats) -> list[str]:
    notes: list[str] = []
    if not floor_K.any() and not distances.nonfinite:
        notes.append("All Runs agree in all that was measured: the floor is 0, and any difference will be beyond it.")
    if distances.nonfinite:
        first = next(iter(distances.nonfinite.values()))
        notes.append(
            f"NaN or infinities differ at {counted(len(distances.nonfinite), 'place')}, first at {first}; they have no "
            "floor."
        )
    return notes
