"""How NumPy measures a block of numbers in host memory, by kind of dtype, in few passes and without a copy if possible:
where there is no compiled kernel (``native``), and what that does not know.

A lane measures one kind of dtype. Bit patterns of floats sort like the numbers they stand for: seen as signed integers,
the largest is the largest positive number and the smallest the negative number nearest to zero; seen as unsigned ones,
the largest is the most negative number and the smallest the positive one nearest to zero. So four reductions of the
bits, which NumPy vectorises for every width, give the extremes and show whether there are any NaN, infinities, zeros or
subnormals, which are counted only then; three do where all numbers have one sign. (A float minimum costs as much and
gives the extremes alone.)
"""

from __future__ import annotations

import math
import struct
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueline.tensor.memory import bits_of

CHUNK = 131_072
"""Numbers that are measured while they are in the cache: 512 KB of float32."""

ROW = 1024
"""Numbers whose squares are added in float32; in float64 across. 65,536 equal numbers, where roundings do not cancel,
are then off by 3e-7, in one row by 4e-6."""

SMALL = 4096
"""Blocks of up to so many numbers are summed in float64 throughout: there a call costs more than reading memory."""

Stats = tuple[float, float, float, float, float, float, float, float, float]
"""The first nine of ``STAT_NAMES``, all but the projections."""

EMPTY: Stats = (0, 0, 0, 0, 0, math.nan, math.nan, 0.0, 0.0)

_LEAST = 1e-12
_MAX_MAGNITUDE = math.sqrt(torch.finfo(torch.float32).max / CHUNK)
"""The largest absolute value of a block between which its squares and their sum are safe in float32."""

_LARGEST = torch.finfo(torch.float64).max
_LARGEST_SQUARED = 1e150
"""Above it sums may overflow float64, and NumPy would warn."""

_smallest, _largest, _total = np.minimum.reduce, np.maximum.reduce, np.add.reduce

_BIT_TYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
_BYTES = (
    *(torch.int8, torch.uint8),
    *(getattr(torch, name) for name in sorted(dir(torch)) if name.startswith("float8_")),
)
PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
"""What two of make a complex number."""

MEASURABLE = frozenset((*_FLOATS, *_INTEGERS, *_BYTES, *PARTS, torch.bool))
"""Dtypes that there is a lane for."""


class Lane(Protocol):
    """Measures contiguous blocks of 1 to ``CHUNK`` numbers of one kind."""

    def stats(self, block: Tensor) -> Stats:
        """The nine statistics of the block."""
        ...


class Scratch:
    """Buffers for one block, shared by all lanes of a meter, so that nothing of the size of a tensor is made."""

    def __init__(self) -> None:
        self._wide = {torch.float32: torch.empty(CHUNK, dtype=torch.float32)}
        self._mask = np.empty(CHUNK, np.bool_)

    def wide(self, n: int, dtype: torch.dtype) -> Tensor:
        """Float32 or float64 [n], shared with all calls before."""
        if dtype not in self._wide:
            self._wide[dtype] = torch.empty(CHUNK, dtype=dtype)
        return self._wide[dtype][:n]

    def widened(self, block: Tensor, dtype: torch.dtype) -> Tensor:
        """The block as float32 or float64 [n] in ``wide``."""
        return self.wide(block.numel(), dtype).copy_(block.view(-1))

    def finite(self, x: Tensor) -> Tensor:
        """Float32 or float64 [n] in ``wide``, with zeros for what is not finite."""
        return torch.nan_to_num(x, 0.0, 0.0, 0.0, out=self.wide(x.numel(), x.dtype))

    def count(self, numbers: NDArray[Any], relation: Any, value: Any) -> int:
        """How many numbers stand in this relation (a NumPy comparison) to the value."""
        return int(np.count_nonzero(relation(numbers, value, out=self._mask[: numbers.size])))


class FloatLane:
    """Floats of 16, 32 or 64 bits."""

    def __init__(self, dtype: torch.dtype, scratch: Scratch) -> None:
        info = torch.finfo(dtype)
        self._scratch = scratch
        self._dtype = dtype
        self._bit_type = _BIT_TYPES[info.bits // 8]
        self._signed, self._unsigned = np.dtype(f"i{info.bits // 8}"), np.dtype(f"u{info.bits // 8}")
        self._sign = 1 << (info.bits - 1)
        self._shift = 16 if dtype == torch.bfloat16 else 0  # a bfloat16 is the upper half of a float32
        letters = {2: ("=H", "=e"), 4: ("=I", "=f"), 8: ("=Q", "=d")}[
            torch.float32.itemsize if self._shift else dtype.itemsize
        ]
        self._encode, self._decode = struct.Struct(letters[0]).pack, struct.Struct(letters[1]).unpack
        self._tiny = info.smallest_normal
        self._inf, self._least_normal = self._bits(math.inf), self._bits(info.smallest_normal)

    def stats(self, block: Tensor) -> Stats:
        return self._of_few(block) if block.numel() <= SMALL else self._of_many(block)

    def _of_few(self, block: Tensor) -> Stats:
        """Few numbers cost less all in float64, which holds those of every dtype."""
        x = block.double().numpy().reshape(-1)  # by torch, as NumPy warns of signalling NaNs
        low, high = float(_smallest(x)), float(_largest(x))
        nan = pos_inf = neg_inf = 0
        if not (low >= -_LARGEST and high <= _LARGEST):
            nan, pos_inf, neg_inf = int(np.isnan(x).sum()), int((x == math.inf).sum()), int((x == -math.inf).sum())
            x = x[np.isfinite(x)]
            if x.size == 0:
                return (nan, pos_inf, neg_inf, 0, 0, math.nan, math.nan, 0.0, 0.0)
            low, high = float(_smallest(x)), float(_largest(x))
        largest = max(-low, high)
        total = float(_total(x)) if largest <= _LARGEST_SQUARED else torch.as_tensor(x).sum().item()
        sums = total, _square_sum(x, largest)
        zero = small = 0
        if low < self._tiny and high > -self._tiny and float(_smallest(size := np.absolute(x))) < self._tiny:
            zero, small = int((size == 0).sum()), int((size < self._tiny).sum())
        return (nan, pos_inf, neg_inf, zero, small - zero, low + 0.0, high + 0.0, *sums)

    def _of_many(self, block: Tensor) -> Stats:
        signed, sign = bits_of(block, self._signed), self._sign
        unsigned = signed.view(self._unsigned)
        far_positive, far_negative = int(_largest(signed)), int(_largest(unsigned)) - sign
        near_positive = int(_smallest(unsigned)) if far_positive >= 0 else sign  # where there are none
        near_negative = (int(_smallest(signed)) if far_negative >= 0 else 0) + sign
        zero = subnormal = 0
        if near_positive < self._least_normal or near_negative < self._least_normal:
            zero, subnormal = self._near_zero(signed, unsigned, near_positive, near_negative)
        if far_positive >= self._inf or far_negative >= self._inf:
            odd = self._not_finite(signed, unsigned, far_positive, far_negative)
            return (*odd, zero, subnormal, *self._rest(block, min(near_positive, near_negative), sum(odd)))
        low = -self._value(far_negative) if far_negative >= 0 else self._value(near_positive)
        high = self._value(far_positive) if far_positive >= 0 else -self._value(near_negative)
        sums = self._sums_of(block, signed, max(-low, high))
        return (0, 0, 0, zero, subnormal, low + 0.0, high + 0.0, *sums)

    def _sums_of(self, block: Tensor, signed: NDArray[Any], largest: float) -> tuple[float, float]:
        """Sum and sum of squares of finite numbers. Most are float32 and need neither a copy nor an alias."""
        if self._dtype == torch.float32 and _LEAST <= largest <= _MAX_MAGNITUDE:
            return block.sum().item(), _square_sum(signed.view(np.float32), largest)
        return _sums(self._wide(block), largest)

    def _near_zero(
        self, signed: NDArray[Any], unsigned: NDArray[Any], near_positive: int, near_negative: int
    ) -> tuple[int, int]:
        """Zeros and subnormals, looking only on the side of zero where there are any."""
        count, zero, small = self._scratch.count, 0, 0
        if near_positive < self._least_normal:
            small += count(unsigned, np.less, self._least_normal)
            zero += count(unsigned, np.equal, 0) if near_positive == 0 else 0
        if near_negative < self._least_normal:
            small += count(signed, np.less, self._least_normal - self._sign)
            zero += count(unsigned, np.equal, self._sign) if near_negative == 0 else 0
        return zero, small - zero

    def _not_finite(
        self, signed: NDArray[Any], unsigned: NDArray[Any], far_positive: int, far_negative: int
    ) -> tuple[int, int, int]:
        """Numbers that are NaN, +inf and -inf, looking only where there are any."""
        count, nan, pos_inf, neg_inf = self._scratch.count, 0, 0, 0
        if far_positive >= self._inf:
            pos_inf = count(signed, np.equal, self._inf)
            nan += count(signed, np.greater, self._inf) if far_positive > self._inf else 0
        if far_negative >= self._inf:
            neg_inf = count(unsigned, np.equal, self._sign + self._inf)
            nan += count(unsigned, np.greater, self._sign + self._inf) if far_negative > self._inf else 0
        return nan, pos_inf, neg_inf

    def _rest(self, block: Tensor, nearest: int, num_odd: int) -> tuple[float, float, float, float]:
        """Extremes and sums of the finite numbers among others, ``nearest`` being the smallest absolute bits."""
        if num_odd == block.numel():
            return math.nan, math.nan, 0.0, 0.0
        wide = self._scratch.finite(self._wide(block))
        x = wide.numpy()
        low, high, nearest_value = float(_smallest(x)), float(_largest(x)), self._value(nearest)
        # A zero may stand for what is not finite. If so, no finite number is on that side of it, or it is zero itself.
        low, high = low if low < 0 else nearest_value, high if high > 0 else 0.0 - nearest_value
        return low, high, *_sums(wide, max(-low, high))

    def _wide(self, block: Tensor) -> Tensor:
        return self._scratch.widened(block, torch.float32) if block.element_size() < 4 else block.view(-1)

    def _bits(self, value: float) -> int:
        return int(torch.tensor(value, dtype=self._dtype).view(self._bit_type).item())

    def _value(self, bits: int) -> float:
        """The positive number with these bits."""
        return self._decode(self._encode(bits << self._shift))[0]


class ByteLane:
    """Eight-bit floats and integers: the counts of the 256 values give every statistic exactly."""

    def __init__(self, dtype: torch.dtype) -> None:
        values = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64).numpy()
        self._finite = np.isfinite(values)
        self._values = np.where(self._finite, values, 0.0)
        is_float = dtype.is_floating_point
        least = torch.finfo(dtype).smallest_normal if is_float else 0.0
        marks = (
            values != values,
            values == np.inf,
            values == -np.inf,
            values == 0,
            (values != 0) & (abs(values) < least),
        )
        self._weights = np.stack([*marks, self._values, self._values**2]).astype(np.float64)

    def stats(self, block: Tensor) -> Stats:
        counts = torch.bincount(block.view(-1).view(torch.uint8), minlength=256).numpy()
        nan, pos_inf, neg_inf, zero, subnormal, total, square = (self._weights @ counts).tolist()
        present = self._values[self._finite & (counts > 0)]
        low, high = (float(present.min()), float(present.max())) if present.size else (math.nan, math.nan)
        return (nan, pos_inf, neg_inf, zero, subnormal, low, high, total, square)


class BoolLane:
    """Booleans, 0 and 1."""

    def stats(self, block: Tensor) -> Stats:
        numel = block.numel()
        num_true = int(np.count_nonzero(block.numpy()))
        return (
            0,
            0,
            0,
            numel - num_true,
            0,
            float(num_true == numel),
            float(num_true > 0),
            float(num_true),
            float(num_true),
        )


class IntegerLane:
    """Integers of 16 to 64 bits; sums in float64."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def stats(self, block: Tensor) -> Stats:
        x = block.numpy().reshape(-1)
        low, high = int(_smallest(x)), int(_largest(x))
        zero = self._scratch.count(x, np.equal, 0) if low <= 0 <= high else 0
        sums = _sums(self._scratch.widened(block, torch.float64), 0.0)
        return (0, 0, 0, zero, 0, float(low), float(high), *sums)


def lane_of(dtype: torch.dtype, scratch: Scratch) -> Lane:
    """What measures one of the ``MEASURABLE`` dtypes; complex numbers go as their real and imaginary parts."""
    dtype = PARTS.get(dtype, dtype)
    if dtype == torch.bool:
        return BoolLane()
    if dtype in _BYTES:
        return ByteLane(dtype)
    return FloatLane(dtype, scratch) if dtype in _FLOATS else IntegerLane(scratch)


def of_one(value: float, dtype: torch.dtype) -> Stats:
    """The nine statistics of one float of this dtype."""
    if value - value != 0:  # infinite or NaN
        return (value != value, value == math.inf, value == -math.inf, 0, 0, math.nan, math.nan, 0.0, 0.0)
    size = abs(value)
    subnormal = 0 < size < 1 and size < torch.finfo(dtype).smallest_normal
    return (0, 0, 0, value == 0, subnormal, value + 0.0, value + 0.0, value, value * value)


def _sums(wide: Tensor, largest: float) -> tuple[float, float]:
    """Sum and sum of squares of finite float32 or float64 [n] whose largest absolute value is ``largest``.

    Float64 takes over where squares in float32 would overflow, or be lost below its range.
    """
    if wide.dtype == torch.float32 and not _LEAST <= largest <= _MAX_MAGNITUDE:
        wide = wide.double()
    return wide.sum().item(), _square_sum(wide.numpy(), largest)


def _square_sum(x: NDArray[Any], largest: float) -> float:
    """Σ x², in float32 within a row and in float64 across rows; inf where float64 overflows."""
    if largest > _LARGEST_SQUARED:
        return torch.as_tensor(x).square().sum().item()
    if x.dtype == np.float64:
        return float(np.dot(x, x))
    whole = x.size - x.size % ROW
    rows = x[:whole]
    squares = np.matmul(rows.reshape(-1, 1, ROW), rows.reshape(-1, ROW, 1))
    total = float(_total(squares, axis=None, dtype=np.float64))
    if whole < x.size:
        tail = x[whole:].astype(np.float64)
        total += float(np.dot(tail, tail))
    return total
