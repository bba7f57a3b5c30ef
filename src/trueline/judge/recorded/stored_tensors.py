"""Stored values, read a stretch at a time: alone, or put together from what ranks and micro-batches stored of them, so
that one may be larger than memory.

Elements are counted in row-major order of the whole value.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trueline.store.records.numbers import numbers
from trueline.store.records.tensor_files import TensorValue

Shape = tuple[int, ...]

_SHORT = 4096
"""Elements of a stretch below which many are read at once, and then cut, rather than one by one."""


class Stored(ABC):
    """Numbers of ``shape`` that are read when they are asked for; ``np.asarray`` of it reads all of them."""

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def read_range(self, begin: int, end: int) -> NDArray[Any]:
        """[end - begin] the elements from ``begin`` on, of ``dtype``."""
        return self._read_range(begin, end)

    @abstractmethod
    def _read_range(self, begin: int, end: int) -> NDArray[Any]: ...

    # NumPy calls it, so that comparisons take a stored value as they take an array.
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """The whole value in memory."""
        whole = self.read_range(0, self.size).reshape(self.shape)
        return np.array(whole, dtype or self.dtype) if copy else np.asarray(whole, dtype)


class ArrayValue(Stored):
    """An array in memory, or mapped from a file."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(array.shape, array.dtype)
        self._flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        return self._flat[begin:end]


class Encoded(Stored):
    """A value of a dtype that NumPy lacks; what is read of it is float32."""

    def __init__(self, value: TensorValue) -> None:
        self._dtype, self._bits = value.dtype, value.data.reshape(-1)
        super().__init__(value.data.shape, self.read_range(0, 0).dtype)

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        bits = self._bits[begin:end]
        return numbers(TensorValue(self._dtype, bits.shape, bits))


class SideBySide(Stored):
    """Parts one behind the other along ``dim``. Raises ValueError where their other dims differ."""

    def __init__(self, parts: Sequence[Stored], dim: int) -> None:
        first = parts[0].shape
        if any(part.shape[:dim] + part.shape[dim + 1 :] != first[:dim] + first[dim + 1 :] for part in parts):
            raise ValueError(f"parts of shapes {[part.shape for part in parts]} do not fit along dim {dim}")
        size = sum(part.shape[dim] for part in parts)
        super().__init__((*first[:dim], size, *first[dim + 1 :]), np.result_type(*(part.dtype for part in parts)))
        self._parts = parts
        self._widths = [math.prod(part.shape[dim:]) for part in parts]
        self._ends = list(accumulate(self._widths))

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        width = self._ends[-1]
        # Long rows are read part by part; many short ones at once, as one read a row would take longer than the copy.
        if width >= _SHORT or not width:
            return self._one_by_one(begin, end)
        first, last = begin // width, -(-end // width)
        rows = (
            part.read_range(first * part_width, last * part_width).reshape(last - first, part_width)
            for part, part_width in zip(self._parts, self._widths, strict=True)
        )
        return np.concatenate(list(rows), axis=1).reshape(-1)[begin - first * width : end - first * width]

    def _one_by_one(self, begin: int, end: int) -> NDArray[Any]:
        pieces = [np.empty(0, self.dtype)]
        while begin < end:
            row, column = divmod(begin, self._ends[-1])
            index = bisect_right(self._ends, column)
            part_width = self._widths[index]
            start = row * part_width + column - (self._ends[index] - part_width)
            size = min(end - begin, self._ends[index] - column)
            pieces.append(self._parts[index].read_range(start, start + size))
            begin += size
        return np.concatenate(pieces)


class Scaled(Stored):
    """A value times a number."""

    def __init__(self, value: Stored, scale: float) -> None:
        super().__init__(value.shape, np.multiply(value.read_range(0, 0), scale).dtype)
        self._value, self._scale = value, scale

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        return np.multiply(self._value.read_range(begin, end), self._scale)


class Sum(Stored):
    """The sum of values of one size, in float64."""

    def __init__(self, values: Sequence[Stored]) -> None:
        super().__init__(values[0].shape, np.dtype(np.float64))
        self._values = values

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        total = np.array(self._values[0].read_range(begin, end), np.float64)  # a copy: the values may be a mapped file
        for value in self._values[1:]:
            np.add(total, value.read_range(begin, end), out=total)
        return total


class InOrder(Stored):
    """A value whose rows along ``dim`` are taken in ``order_N``, [N] int64; where each of N samples has several rows
    one behind the other, they stay together.
    """

    def __init__(self, value: Stored, order_N: NDArray[np.int64], dim: int) -> None:
        super().__init__(value.shape, value.dtype)
        self._value, self._order_N = value, order_N
        self._width = math.prod(value.shape[dim:])
        self._unit = self._width // len(order_N)

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        if self._unit < _SHORT and self._width < 8 * _SHORT:
            first, last = begin // self._width, -(-end // self._width)
            rows = self._value.read_range(first * self._width, last * self._width)
            turned = rows.reshape(last - first, len(self._order_N), -1)[:, self._order_N].reshape(-1)
            return turned[begin - first * self._width : end - first * self._width]
        pieces = [np.empty(0, self.dtype)]
        while begin < end:
            row, inside = divmod(begin, self._width)
            position, rest = divmod(inside, self._unit)
            start = row * self._width + int(self._order_N[position]) * self._unit + rest
            size = min(end - begin, self._unit - rest)
            pieces.append(self._value.read_range(start, start + size))
            begin += size
        return np.concatenate(pieces)


class Reshaped(Stored):
    """The same elements in another shape of as many."""

    def __init__(self, value: Stored, shape: Shape) -> None:
        super().__init__(shape, value.dtype)
        self._value = value

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        return self._value.read_range(begin, end)


class Permuted(Stored):
    """A value whose dims are taken in the order of ``axes``, as ``numpy.transpose`` does it."""

    def __init__(self, value: Stored, axes: Shape) -> None:
        super().__init__(tuple(value.shape[axis] for axis in axes), value.dtype)
        moved = max((position + 1 for position, axis in enumerate(axes) if position != axis), default=0)
        self._value, self._axes, self._outer = value, axes, self.shape[:moved]
        self._unit = math.prod(self.shape[moved:])
        self._strides = [math.prod(value.shape[axis + 1 : moved]) for axis in axes[:moved]]

    def _read_range(self, begin: int, end: int) -> NDArray[Any]:
        if self.size <= 8 * _SHORT:
            whole = self._value.read_range(0, self.size).reshape(self._value.shape)
            return whole.transpose(self._axes).reshape(-1)[begin:end]
        first, last = begin // self._unit, -(-end // self._unit)
        indices = np.unravel_index(np.arange(first, last), self._outer) if self._outer else ()
        source = np.zeros(last - first, np.int64)
        for at, stride in zip(indices, self._strides, strict=True):
            source += at * stride * self._unit
        pieces = [np.empty(0, self.dtype)]
        for unit, start in enumerate(source.tolist(), start=first):
            low, high = max(begin - unit * self._unit, 0), min(end - unit * self._unit, self._unit)
            pieces.append(self._value.read_range(start + low, start + high))
        return np.concatenate(pieces)


_MOST_LAYOUTS = 6


def layouts(value: Stored, shape: Shape) -> list[Stored]:
    """Every way in which the elements of ``value`` may correspond to those of a value of ``shape``: as they are, where
    one shape is that of the other with dims taken together; else with its dims in another order, as Megatron has the
    sequence before the batch. None where the two are laid out otherwise.
    """
    ends, value_ends = ({math.prod(dims[:end]) for end in range(1, len(dims) + 1)} for dims in (shape, value.shape))
    if ends <= value_ends or value_ends <= ends:
        return [value]
    if len(shape) != len(value.shape) or sorted(shape) != sorted(value.shape):
        return []
    orders = (axes for axes in permutations(range(len(shape))) if tuple(value.shape[ax] for ax in axes) == shape)
    return [Permuted(value, axes) for axes in islice(orders, _MOST_LAYOUTS)]


def in_groups(parts: Sequence[Stored], dim: int, num_groups: int) -> Stored:
    """Parts that are cut into as many groups along ``dim``, the groups of all parts next to each other: for each
    key-value head its queries, then its key and its value.
    """
    cut = [
        Reshaped(part, (*part.shape[:dim], num_groups, part.shape[dim] // num_groups, *part.shape[dim + 1 :]))
        for part in parts
    ]
    whole = SideBySide(cut, dim + 1)
    return Reshaped(whole, (*whole.shape[:dim], num_groups * whole.shape[dim + 1], *whole.shape[dim + 2 :]))


def stored(value: TensorValue) -> Stored:
    """The stored value as numbers. Raises ``RunError`` for a dtype that is not known."""
    return ArrayValue(numbers(value)) if value.data.dtype.kind != "u" or value.dtype.startswith("U") else Encoded(value)


def placed(parts: Sequence[tuple[Shape, Stored]], shape: Shape) -> Stored:
    """The value of ``shape`` whose parts begin at these offsets; those at one place are the same."""
    part_at = {offsets: part for offsets, part in parts if part.size} or dict(parts[:1])
    try:
        whole = _grid(part_at, 0)
    except ValueError:
        whole = None
    if whole is not None and whole.shape == shape:
        return whole
    array = np.zeros(shape, parts[0][1].dtype)
    for offsets, part in part_at.items():
        array[tuple(slice(start, start + size) for start, size in zip(offsets, part.shape, strict=True))] = part
    return ArrayValue(array)


def _grid(parts: dict[Shape, Stored], dim: int) -> Stored:
    """Parts that fill a block, those along ``dim`` side by side. Raises ValueError where they do not fill it."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    at: dict[int, dict[Shape, Stored]] = {}
    for offsets, part in parts.items():
        if dim == len(offsets):
            raise ValueError(f"two parts are at {offsets}")
        at.setdefault(offsets[dim], {})[offsets] = part
    slabs = [(start, _grid(at[start], dim + 1)) for start in sorted(at)]
    if len(slabs) == 1:
        return slabs[0][1]
    for (start, part), (following, _) in pairwise(slabs):
        if start + part.shape[dim] != following:
            raise ValueError(f"the part at {start} along dim {dim} does not reach {following}")
    return SideBySide([part for _, part in slabs], dim)
