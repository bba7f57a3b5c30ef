"""Whether ranks whose weights drifted apart have the same states of the optimizer.

States remember gradients and updates, and no weights: replicas that reduce their gradients keep equal states also after
something else wrote other weights on one of them. Where states differed while weights were still equal, the next update
had to differ. K elements of one slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from trueline.analyze.updates.laws import GRAD, LAWS, PARAM, TOLERANCE, Array
from trueline.analyze.updates.samples import Slice, sampled_updates
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

Alike = Literal["states-equal", "states-apart"]

_KEPT = 0.5
"""The least share of a difference between states that must be left in them, for equal states to say that none was."""


def states_of_drifted(run: Run, names: Collection[str], equal_at: int, different_at: int) -> tuple[Alike, int] | None:
    """What the states say of the parameters ``names``, and at which step: ``states-apart`` where they differed at a
    step at which all weights were equal (up to ``equal_at``), ``states-equal`` where they are the same bits in elements
    whose weights differ by more than updates round (from ``different_at`` on). None where no ranks' samples tell.
    """
    try:
        slices = sampled_updates(run).slices
    except CannotTell:
        return None
    same: defaultdict[tuple[int, str, int, int], list[Slice]] = defaultdict(list)
    for each in slices:
        if each.name in names and each.law in LAWS:
            same[each.step, each.name, each.start, each.end].append(each)
    pairs = [(each, other) for alike in same.values() for each, other in combinations(alike, 2)]
    for each, other in pairs:
        if each.step <= equal_at and not _equal(_states(each), _states(other)):
            return "states-apart", each.step
    drifted = [pair for pair in pairs if pair[0].step >= different_at and _weights_differ(*pair, equal_at)]
    if not drifted or not all(_remembers(pair, equal_at) and _alike(*pair) for pair in drifted):
        return None
    return "states-equal", drifted[0][0].step


def counts_of_drifted(run: Run, names: Collection[str]) -> tuple[Mapping[int, int], int] | None:
    """By rank how many updates of these parameters its optimizer had counted before the first one whose sample several
    ranks left, where these numbers differ, and the step of that; None where they agree, or are not known.
    """
    try:
        slices = sampled_updates(run).slices
    except CannotTell:
        return None
    counts: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for each in slices:
        if each.name in names and "step" in each.numbers_before:
            counts[each.step][each.rank] = int(each.numbers_before["step"])
    first = min((step for step, by_rank in counts.items() if len(by_rank) > 1), default=None)
    if first is None or len(set(counts[first].values())) == 1:
        return None
    return counts[first], first


def _states(of: Slice) -> Mapping[str, Array]:
    return {name: values for name, values in of.before.items() if name not in (PARAM, GRAD)}


def _equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def _alike(one: Slice, other: Slice) -> bool:
    """Whether both update by the same settings and states, and there is something in these."""
    states = _states(one)
    filled = any(np.any(values) for values in states.values())
    return filled and one.settings == other.settings and _equal(states, _states(other))


def _weights_differ(one: Slice, other: Slice, equal_at: int) -> bool:
    mine, theirs = one.before[PARAM], other.before[PARAM]
    rounded = TOLERANCE * one.unit * np.maximum(np.abs(mine), np.abs(theirs)) * (one.step - equal_at)
    return bool(np.any(np.abs(mine - theirs) > rounded))


def _remembers(slices: Iterable[Slice], equal_at: int) -> bool:
    """Whether states still have ``_KEPT`` of what was in them at the last step at which weights were equal."""
    return all(_longest(each) ** (each.step - equal_at) >= _KEPT for each in slices)


def _longest(of: Slice) -> float:
    """What the longest average of an optimizer keeps of itself in an update."""
    betas: Sequence[float] = of.settings.get("betas") or ()
    return max([*betas, of.settings.get("momentum") or 0.0, of.settings.get("alpha") or 0.0])
