"""What the laws of propagation need to know of a value's numbers, of which those that mask others do not count."""

from __future__ import annotations

import math

from trueline.analyze.recorded.step_values import Value
from trueline.schema.formats import FORMATS


def size_of(value: Value) -> tuple[float | None, float]:
    """``rms`` and ``spread`` of an ``Operand`` that has the numbers of ``value``."""
    stats = value.stats
    if stats is None or not stats.finite:
        return None, 1.0
    if _is_masked(value):
        return abs(stats.max or 0.0) or None, 1.0
    rms, std = stats.rms, stats.std
    return rms or None, max(rms / std if rms and std else 1.0, 1.0)


def _is_masked(value: Value) -> bool:
    """Whether some numbers are as low as a dtype goes, which a softmax makes 0 of: only the others have a size."""
    low = None if value.stats is None else value.stats.min
    return low is not None and low <= _MASK.get(value.dtype, -math.inf)


def lowest_apart(value: Value, twin: Value | None) -> float:
    """The difference of two masks that are as low as the dtypes go that they were made for."""
    if twin is None or value.stats is None or twin.stats is None or not (_is_masked(value) and _is_masked(twin)):
        return 0.0
    one, other = value.stats.min or 0.0, twin.stats.min or 0.0
    return abs(one - other) / abs(other) if math.isfinite(one) and math.isfinite(other) else 0.0


_MASK = {name: -each.largest / 4 for name, each in FORMATS.items()}
"""By dtype, a quarter of the lowest number: what is added to it, or to that of a coarser dtype, leaves it lower."""
