"""Whether ranks whose weights drifted apart have the same states of the optimizer.

States remember gradients and updates, and no weights: replicas that reduce their gradients keep equal states also after
something else wrote other weights on one of them. Where states differed while weights were still equal, the next update
had to differ. K elements of one slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD, LAWS, PARAM, TOLERANCE, Array
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

Alike = Literal["states-equal", "states-apart"]

_IN_LINE = 5e-4
"""The least 1 - cosine of gradients of 16 elements that are not one gradient times a factor: those of other elements
come as near with a probability below 1e-24. Copies whose weights have just parted are nearer."""

_FEWEST = 16
"""Elements of a sample that say so."""

_SCALED = 0.05
"""How far from 1 a factor is none of these."""

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


@dataclass(frozen=True)
class Received:
    """What the optimizer of ``rank`` received of some elements at ``step``: ``factor`` times what that of the rank
    ``beside`` it did, in all of ``num`` samples.
    """

    step: int
    rank: int
    beside: int
    factor: float
    num: int


def scaled_apart(runs: Iterable[Run], ranks: Sequence[int]) -> Received | None:
    """The first sampled step, in ``runs`` together, at which optimizers of ``ranks`` received the same gradients of
    the same elements but for one factor, in two samples or more; None where there is none. Elements of what is cut
    have other gradients on each rank, in no factor.
    """
    same: defaultdict[int, defaultdict[tuple[str, int, int, int], dict[int, Array]]]
    same = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        try:
            slices = sampled_updates(run).slices
        except CannotTell:
            return None
        for one in slices:
            if one.rank in ranks and GRAD in one.before and len(one.before[GRAD]) >= _FEWEST:
                same[one.step][one.name, one.made, one.start, one.end][one.rank] = one.before[GRAD]
    for step in sorted(same):
        for rank in ranks[1:]:
            pairs = [(held[ranks[0]], held[rank]) for held in same[step].values() if {ranks[0], rank} <= set(held)]
            factors = [factor for pair in pairs if (factor := _factor(*pair)) is not None]
            usual = float(np.median(factors)) if len(factors) > 1 else 1.0
            if abs(usual - 1) > _SCALED and all(abs(one - usual) <= _SCALED * usual for one in factors):
                return Received(step, rank, ranks[0], usual, len(factors))
    return None


def _factor(beside: Array, own: Array) -> float | None:
    """What ``beside`` is multiplied by in ``own``, both [K]; None where they are not in one line."""
    norms = float(np.linalg.norm(beside)), float(np.linalg.norm(own))
    if not 0 < min(norms) <= max(norms) < np.inf or float(beside @ own) < (1 - _IN_LINE) * norms[0] * norms[1]:
        return None
    return norms[1] / norms[0]


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
