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

    def measure(value: Value, ref_value: Value) -> Distance:
        distance = Distance(None, None, "statistics")
        if value.stats is not None and ref_value.stats is not None:
            stats, ref_stats = value.stats, ref_value.stats
            if value.shape != ref_value.shape or UNORDERED in value.flags | ref_value.flags:
                stats, ref_stats = replace(stats, projections=None), replace(ref_stats, projections=None)
            if not fingerprints:
                stats, ref_stats = replace(stats, fingerprint=None), replace(ref_stats, fingerprint=None)
            width = value.shape[-1] if value.shape else 1
            distance = (
                stats_distance(stats, ref_stats, rows=stats.numel // max(width, 1))
                if stats.summed and ref_stats.summed
                else checksum_distance(stats, ref_stats)
            )
        # Equal fingerprints spare the reading of stored values.
        if (distance.how == "fingerprint" and distance.equal) or value.load is None or ref_value.load is None:
            return distance
        exact, twin = nearest(value.load(), ref_value.load(), max_bytes=max_bytes)
        unordered = UNORDERED in value.flags | ref_value.flags or twin is None
        # Elements at the same index need not belong together: statistics do not mind, and may be nearer.
        return min(distance, exact, key=_rel_or_inf) if unordered and distance.rel is not None else exact

    return measure


def checksum_distance(stats: TensorStats, ref_stats: TensorStats) -> Distance:
    """The distance from checksums alone: equal or not, of unknown size; neither is known where one side has none."""
    prints = stats.fingerprint, ref_stats.fingerprint
    if stats.dtype != ref_stats.dtype or None in prints:
        return Distance(None, None, "fingerprint")
    equal = prints[0] == prints[1]
    return Distance(equal, 0.0 if equal else None, "fingerprint", certain_rel=0.0 if equal else None)


def nearest(stored: Stored, ref_stored: Stored, *, max_bytes: int) -> tuple[Distance, Stored | None]:
    """The distance of two stored values in the layout in which they are nearest, and the second one in that layout;
    None where no layout of the second has the shape of the first.
    """
    twins = layouts(ref_stored, stored.shape)
    distances = [tensor_distance(stored, twin, max_bytes=max_bytes) for twin in twins or [ref_stored]]
    best = min(range(len(distances)), key=lambda index: _rel_or_inf(distances[index]))
    return distances[best], twins[best] if twins else None


def _rel_or_inf(distance: Distance) -> float:
    return math.inf if distance.rel is None else distance.rel
