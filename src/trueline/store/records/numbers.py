"""Stored values as numbers that NumPy can reckon with, also those of dtypes that NumPy lacks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.schema.errors import RunError
from trueline.store.records.tensor_files import NUMPY_TYPES, TensorValue

_EXPONENT_BITS = {"F8_E4M3": 4, "F8_E5M2": 5}
"""Of the 8-bit floats with a sign; the rest of their bits is the mantissa (OFP8, Open Compute Project, 2023)."""


def numbers(value: TensorValue) -> NDArray[Any]:
    """The elements of a stored value, as an array of its shape and of NumPy's own dtype, without a copy; bfloat16 and
    8-bit floats as float32, which holds each of their values exactly.

    Raises ``RunError`` for a dtype that is not known.
    """
    if value.dtype == "BF16":
        return (value.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if value.dtype.startswith("F8_") and value.dtype in NUMPY_TYPES:
        return _eight_bit_floats(value.dtype)[value.data]
    if value.dtype not in NUMPY_TYPES:
        raise RunError(
            f"A stored value has dtype '{value.dtype}', which cannot be read. Known: {', '.join(NUMPY_TYPES)}."
        )
    return value.data


@functools.cache
def _eight_bit_floats(dtype: str) -> NDArray[np.float32]:
    """[256] what each pattern of bits stands for."""
    bits = np.arange(256, dtype=np.int64)
    if dtype == "F8_E8M0":  # a power of two, without sign or zero (OCP Microscaling formats, 2023)
        return np.where(bits == 255, np.nan, np.ldexp(1.0, bits - 127)).astype(np.float32)
    exponent_bits = _EXPONENT_BITS[dtype]
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    sign = np.where(bits & 128, -1.0, 1.0)
    exponent = (bits & 127) >> mantissa_bits
    fraction = (bits & (2**mantissa_bits - 1)) / 2**mantissa_bits
    normal = np.ldexp(1 + fraction, exponent - bias)
    values = sign * np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    if dtype == "F8_E4M3":  # no infinity, and one NaN of each sign
        return np.where(bits & 127 == 127, np.nan, values).astype(np.float32)
    special = np.where(fraction == 0, sign * np.inf, np.nan)
    return np.where(exponent == 2**exponent_bits - 1, special, values).astype(np.float32)
