"""Measures how much Runs that should agree differ, site by site: a Tolerance.

Such Runs are the same job twice, with another order of reduction, on other hardware, or with inputs that were perturbed
by a rounding. Letters: P pairs of Runs, K places (a site at a step).
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
"""The key of a site, and a step."""

DIFFERENT_MODELS = 0.5
"""Two Runs with less than this fraction of their values in common are of different models."""
MOST_LOSSES = 1000
"""Steps, at most, whose losses a Tolerance contains."""
DIFFERENT_WEIGHTS = 0.1
"""Relative difference of weights, at most, at the start of the first step; with more, the Runs started differently."""


@dataclass
class _Distances:
    """Distances of the pairs so far. ``apart`` has one for each place of each pair, ``nonfinite`` the places, with
    their full sites, where NaN or infinities differ.
    """

    apart: list[dict[SiteAtStep, float]] = field(default_factory=list[dict[SiteAtStep, float]])
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
    opened = _opened(runs)
    pairs = list(combinations(opened, 2))
    seen = _Distances()
    measure = measure_with(max_bytes)
    for done, (one, other) in enumerate(pairs):
        arrangements = arrange(one, other, steps=steps, ranks=ranks, names=names)
        seen.apart.append({})
        for at, each in enumerate(arrangements):
            if progress is not None:
                progress(done * len(arrangements) + at, len(pairs) * len(arrangements))
            _measure_step(seen, each, measure, first=each.step == arrangements[0].step)
        if not set(seen.apart[-1]) - set(seen.nonfinite):
            raise CannotTell(
                f"'{one.path}' and '{other.path}' have no numbers in common to measure. Record with depth = \"stats\" "
                "or more."
            )
    damage = [f"{run.path}: {problem}" for run in opened for problem in run.problems]
    return _tolerance(seen, [run.path for run in opened], damage, [loss_curve(run) for run in opened])


def _opened(runs: Sequence[str | os.PathLike[str] | Run]) -> list[Run]:
    opened = [each if isinstance(each, Run) else Run(os.fspath(each)) for each in runs]
    if len(opened) < 2:
        which = f" ('{opened[0].path}')" if opened else ""
        raise InputError(
            f"Calibrating takes two or more Runs that should agree, and {len(opened)} "
            f"{'was' if len(opened) == 1 else 'were'} given{which}. Record the same job again and pass both."
        )
    for one, other in combinations(opened, 2):
        if os.path.realpath(one.path) == os.path.realpath(other.path):
            raise InputError(f"'{one.path}' and '{other.path}' are the same Run. Pass Runs of different jobs.")
    return opened


def _measure_step(
    seen: _Distances,
    each: Arrangement,
    measure: Callable[[Value, Value], Distance],
    *,
    first: bool,
) -> None:
    """Measure each pair of values of a step once, and note the distance at every site of the two."""
    alignment = each.read()
    labels = alignment.mine.label, alignment.theirs.label
    _require_one_model(alignment, labels)
    known: dict[tuple[int, int], Distance] = {}
    begins = first
    for pair in alignment.pairs:
        if pair.mine is None or pair.theirs is None:
            continue
        roots = pair.mine.root, pair.theirs.root
        distance = known.get(roots)
        if distance is None:
            distance = known[roots] = measure(pair.mine, pair.theirs)
        if first:
            _require_equal_start(pair.mine, distance, labels, is_input=begins)
        begins = begins and not pair.mine.in_model
        _note(seen, pair.mine, pair.theirs, distance)


def _note(seen: _Distances, mine: Value, theirs: Value, distance: Distance) -> None:
    site = site_key(theirs)
    place = site, theirs.site.step
    if distance.nonfinite_differ:
        seen.nonfinite.setdefault(place, str(theirs.site))
        return
    if distance.rel is None or not np.isfinite(distance.rel):
        return
    apart = seen.apart[-1]
    apart[place] = max(apart.get(place, 0.0), distance.rel)
    seen.kinds[site] = kind_key(mine, theirs)
    seen.inexact += distance.how != "tensor" and not distance.equal


def _require_one_model(alignment: Alignment, labels: tuple[str, str]) -> None:
    common = sum(pair.mine is not None and pair.theirs is not None for pair in alignment.pairs)
    if common < DIFFERENT_MODELS * len(alignment.pairs):
        raise InputError(
            f"'{labels[0]}' and '{labels[1]}' have {common:,} of {len(alignment.pairs):,} recorded values in common: "
            "they are of different models, or were recorded under different Plans. Pass Runs of one job."
        )


def _require_equal_start(mine: Value, distance: Distance, labels: tuple[str, str], *, is_input: bool) -> None:
    """Raise ``InputError`` for Runs that start with different weights or samples."""
    todo = "Runs that should agree have one seed (trueline.seed_all), one checkpoint and one order of samples."
    if mine.site.phase == "param" and (distance.rel or 0.0) > DIFFERENT_WEIGHTS:
        raise InputError(
            f"'{labels[0]}' and '{labels[1]}' begin with different weights: '{mine.site.name}' differs by "
            f"{distance.rel:.2g} of its norm at step {mine.site.step}. {todo}"
        )
    if is_input and mine.site.phase == "fwd" and "int" in mine.dtype and distance.equal is False:
        raise InputError(
            f"'{labels[0]}' and '{labels[1]}' were given different samples: '{mine.site}' differs, and it is made of "
            f"whole numbers. {todo}"
        )


def _tolerance(seen: _Distances, paths: Sequence[str], damage: Sequence[str], curves: Sequence[Curve]) -> Tolerance:
    places = sorted({place for apart in seen.apart for place in apart} - set(seen.nonfinite))
    apart_PK = np.array([[apart.get(place, np.nan) for place in places] for apart in seen.apart])
    floor_K = np.nanmax(apart_PK, axis=0)
    steps = sorted({step for _, step in places})
    by_kind = _places_by_kind(places, seen.kinds)
    sites: dict[str, list[float | None]] = {}
    loss_steps = _thinned(sorted(set(curves[0]).intersection(*curves[1:])))
    for (site, step), floor in zip(places, floor_K.tolist(), strict=True):
        sites.setdefault(site, [None] * len(steps))[steps.index(step)] = floor
    return Tolerance(
        runs=tuple(paths),
        pairs=len(seen.apart),
        how="statistics" if seen.inexact else "tensor",
        steps=tuple(steps),
        spread=_spread(apart_PK, list(by_kind.values()), len(paths)),
        kinds=_kind_floors(floor_K, by_kind, steps),
        sites={site: tuple(floors) for site, floors in sites.items()},
        loss_steps=tuple(loss_steps),
        losses=tuple(tuple(curve[step] for step in loss_steps) for curve in curves) if loss_steps else (),
        notes=(*_notes(seen, floor_K), *damage),
    )


def _thinned(steps: Sequence[int]) -> Sequence[int]:
    """At most about ``MOST_LOSSES`` of the steps: the first ones, and then with even gaps."""
    rest = steps[MOST_LOSSES // 2 :]
    return [*steps[: MOST_LOSSES // 2], *rest[:: max(-(-len(rest) // (MOST_LOSSES // 2)), 1)]]


def _places_by_kind(places: Sequence[SiteAtStep], kinds: dict[str, str]) -> dict[tuple[str, int], list[int]]:
    """Indices of the places of each kind at each step."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for k, (site, step) in enumerate(places):
        found[kinds[site], step].append(k)
    return dict(found)


def _kind_floors(
    floor_K: Floats, by_kind: dict[tuple[str, int], list[int]], steps: Sequence[int]
) -> dict[str, KindFloor]:
    def each(kind: str, of: Callable[[Floats], float]) -> Floors:
        return tuple(of(floor_K[by_kind[kind, step]]) if (kind, step) in by_kind else None for step in steps)

    return {
        kind: KindFloor(
            count=tuple(len(by_kind.get((kind, step), ())) for step in steps),
            median=each(kind, lambda floors: float(np.median(floors))),
            high=each(kind, lambda floors: float(np.quantile(floors, QUANTILE, method="higher"))),
            largest=each(kind, lambda floors: float(floors.max())),
        )
        for kind in sorted({kind for kind, _ in by_kind})
    }


def _spread(apart_PK: Floats, kinds: Sequence[list[int]], num_runs: int) -> float | None:
    """See ``Tolerance.spread``. Each Run is left out in turn: its distances over what the others say to expect."""
    if num_runs < 3:
        return None
    largest = 0.0
    of_pair = list(combinations(range(num_runs), 2))
    for run in range(num_runs):
        own_P = np.array([run in pair for pair in of_pair])
        own_K, others_K = (np.fmax.reduce(apart_PK[mask], axis=0) for mask in (own_P, ~own_P))
        for places in kinds:
            known = others_K[places][~np.isnan(others_K[places])]
            if len(known):
                others_K[places] = np.fmax(others_K[places], np.median(known))
        over_K = own_K > 0
        if (others_K[over_K] == 0).any():
            return None
        largest = float(np.nanmax(own_K[over_K] / others_K[over_K], initial=largest))
    return largest


def _notes(seen: _Distances, floor_K: Floats) -> list[str]:
    notes: list[str] = []
    if not floor_K.any() and not seen.nonfinite:
        notes.append("All Runs agree in all that was measured: the floor is 0, and any difference will be beyond it.")
    if seen.nonfinite:
        first = next(iter(seen.nonfinite.values()))
        notes.append(
            f"NaN or infinities differ at {counted(len(seen.nonfinite), 'place')}, first at {first}; they have no "
            "floor."
        )
    return notes
