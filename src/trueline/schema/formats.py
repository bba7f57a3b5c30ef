"""Floating-point formats: what their numbers can hold, by torch's name of the dtype without 'torch.'."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """The largest number of a format, the smallest above zero, and half of the distance from 1 to the next (the unit
    roundoff u: rounding to nearest moves a normal number x by at most u·|x|).
    """

    largest: float
    smallest: float
    unit: float


FORMATS: dict[str, FloatFormat] = {
    "float64": FloatFormat((2 - 2.0**-52) * 2.0**1023, 2.0**-1074, 2.0**-53),
    "float32": FloatFormat((2 - 2.0**-23) * 2.0**127, 2.0**-149, 2.0**-24),
    "tfloat32": FloatFormat((2 - 2.0**-10) * 2.0**127, 2.0**-136, 2.0**-11),
    "float16": FloatFormat(65_504.0, 2.0**-24, 2.0**-11),
    "bfloat16": FloatFormat((2 - 2.0**-7) * 2.0**127, 2.0**-133, 2.0**-8),
    "float8_e4m3fn": FloatFormat(448.0, 2.0**-9, 2.0**-4),
    "float8_e5m2": FloatFormat(57_344.0, 2.0**-16, 2.0**-3),
}
"""IEEE 754-2019 (binary64, 32, 16); bfloat16 and TensorFloat-32 as NVIDIA's A100 whitepaper (2020) has them, the latter
with 10 bits of mantissa, for the inputs of a product only; float8 as Micikevicius et al., FP8 Formats for Deep
Learning, arXiv 2209.05433, table 1."""

MASKS: dict[str, float] = {"float16": 2.0**14, "bfloat16": 2.0**120, "float32": 2.0**120, "float64": 2.0**960}
"""Magnitudes from which on a number is taken for a mask, as attention adds them to its scores (``finfo.min``), and not
for a value: beside it no sum shows anything else, so that ``tensor.projections`` leave it out."""
