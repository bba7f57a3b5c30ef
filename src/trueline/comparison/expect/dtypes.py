"""Rounding of dtypes that may be no floating-point ones, and of both sides of a comparison."""

from __future__ import annotations

import math

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser, rounding_rel
from trueline.judge.recorded.step_values import Value


def is_float(dtype: str) -> bool:
    """Tell whether a dtype rounds."""
    return dtype in UNIT_ROUNDOFF


def unit(dtype: str) -> float:
    """Unit roundoff of a dtype; 0 for dtypes that do not round."""
    return UNIT_ROUNDOFF.get(dtype, 0.0)


def both_sides(rel: float) -> float:
    """Rounding of both sides, which are independent of each other."""
    return math.sqrt(2) * rel


def cast_rel(value: Value, twin: Value | None) -> float:
    """Rounding of a cast between two dtypes; 0 where dtypes are equal."""
    if twin is None or twin.dtype == value.dtype or not (is_float(value.dtype) and is_float(twin.dtype)):
        return 0.0
    return rounding_rel(unit(coarser(value.dtype, twin.dtype)))
