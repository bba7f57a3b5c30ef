"""The distance of two recorded values, measured on the most exact data that both sides have."""

from __future__ import annotations

import math
from dataclasses import replace

from trueline.comparison.judgement.values.distance import Distance, stats_distance, tensor_distance
from trueline.comparison.judgement.values.value_judgement import Measure
from trueline.comparison.merge.positions import UNORDERED
from trueline.judge.recorded.step_values import Value
from trueline.judge.recorded.stored_tensors import Stored, layouts
from trueline.schema.stats import TensorStats


def measure_with(max_bytes: int, *, fingerprints: bool = True) -> Measure:
    """A function that gives the distance of two values: from statistics where fingerprints are equal or nothing more
    was stored, else from the values themselves. Where these are ``UNORDERED`` or laid out differently, so that elements
    of the same index do not belong together, the smaller distance counts. ``fingerprints`` False: those of the two
    sides cannot be compared.
    """

    def measure(mine: Value, theirs: Value) -> Distance:
        distance = Distance(None, None, "statistics")
        if mine.stats is not None and theirs.stats is not None:
            one, other = mine.stats, theirs.stats
            if mine.shape != theirs.shape or UNORDERED in mine.flags | theirs.flags:
                one, other = replace(one, projections=None), replace(other, projections=None)
            if not fingerprints:
                one, other = replace(one, fingerprint=None), replace(other, fingerprint=None)
            width = mine.shape[-1] if mine.shape else 1
            distance = (
                stats_distance(one, other, rows=one.numel // max(width, 1))
                if one.summed and other.summed
                else checksum_distance(one, other)
            )
        if (distance.how == "fingerprint" and distance.equal) or mine.load is None or theirs.load is None:
            return distance
        exact, twin = nearest(mine.load(), theirs.load(), max_bytes=max_bytes)
        unordered = UNORDERED in mine.flags | theirs.flags or twin is None
        return min(distance, exact, key=_apart) if unordered and distance.rel is not None else exact

    return measure


def checksum_distance(mine: TensorStats, theirs: TensorStats) -> Distance:
    """The distance from checksums alone: equal or not, of unknown size; neither is known where one side has none."""
    prints = mine.fingerprint, theirs.fingerprint
    if mine.dtype != theirs.dtype or None in prints:
        return Distance(None, None, "fingerprint")
    equal = prints[0] == prints[1]
    return Distance(equal, 0.0 if equal else None, "fingerprint", certain_rel=0.0 if equal else None)


def nearest(mine: Stored, theirs: Stored, *, max_bytes: int) -> tuple[Distance, Stored | None]:
    """The distance of two stored values in the layout in which they are nearest, and the second one in that layout;
    None where no layout of the second has the shape of the first.
    """
    twins = layouts(theirs, mine.shape)
    found = [tensor_distance(mine, each, max_bytes=max_bytes) for each in twins or [theirs]]
    best = min(range(len(found)), key=lambda place: _apart(found[place]))
    return found[best], twins[best] if twins else None


def _apart(distance: Distance) -> float:
    return math.inf if distance.rel is None else distance.rel
