"""Whether the elements at which two stored values differ are blocks of memory, and whose numbers are in them.

Letters: n elements in row-major order, C columns (the last dim), k the largest number for which every end of a run of
differing elements is a multiple of 2^k, m such ends. Ends that lie anywhere by chance are all multiples of 2^k with
probability 2^(-k·m).

Not counted are ends that the shape explains: those of the tensor and of rows, as one row of an embedding may well
differ alone, and ends at a column that several rows have, as the part of a head does. Nor is a run broken by a short
stretch that happens to be equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.schema.fact import fact
from trueline.schema.formats import FORMATS

LEAST_BITS = math.log2(1e6)
"""Bits of evidence from which on a pattern is reported: a probability under 1e-6."""
BLOCK = 256
"""Elements of a wrong block that are looked for elsewhere."""
LEAST_EXPONENT = 8
"""Blocks are of 256 elements or more: parts that a model gives a meaning to, as heads, are mostly smaller."""
_GAP = 16
"""A stretch of equal elements is none where it is so many times shorter than the runs beside it."""
_MOST_RUNS = 64
"""Runs of which blocks may have been written over; more are no blocks."""


@fact()
class BlockPattern:
    """Runs [begin, end) of wrong elements, whose ``num_ends`` ends are multiples of ``2 ** exponent`` elements."""

    runs: tuple[tuple[int, int], ...]
    exponent: int
    num_ends: int

    @property
    def bits(self) -> float:
        """Evidence: -log2 of the probability that ends lie so by chance."""
        return float(self.exponent * self.num_ends)

    @property
    def block(self) -> int:
        """Elements of which every end is a multiple."""
        return 1 << self.exponent


def wrong_elements(array: NDArray[np.generic], ref_array: NDArray[np.generic], dtype: str) -> NDArray[np.bool_]:
    """[n] which elements differ by more than a rounding of each side, of numbers of the usual size."""
    x, y = array.reshape(-1), ref_array.reshape(-1)
    is_same = (x == y) | ((x != x) & (y != y))
    number = FORMATS.get(dtype)
    if number is None or is_same.all():
        return ~is_same
    numbers, ref_numbers = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(ref_numbers[np.isfinite(ref_numbers) & (ref_numbers != 0)])
        usual = float(np.median(size)) if size.size else 0.0
        is_apart = np.abs(numbers - ref_numbers) > 4 * number.unit * np.maximum(np.abs(ref_numbers), usual)
    return ~is_same & (is_apart | ~np.isfinite(numbers) | ~np.isfinite(ref_numbers))


def block_pattern(wrong: NDArray[np.bool_], shape: tuple[int, ...]) -> BlockPattern | None:
    """The pattern of ``wrong`` [n] elements of a value of ``shape``; None where there are no runs that could be blocks,
    or all are wrong.
    """
    if not wrong.any() or wrong.all():
        return None
    runs = _closed(_runs_of(wrong))
    if len(runs) > _MOST_RUNS:
        return None
    width = shape[-1] if shape else 1
    size = wrong.size
    # Ends of the tensor and of rows are explained by the shape.
    ends = sorted({end for run in runs for end in run if 0 < end < size and (end % width or len(shape) < 2)})
    columns = Counter(end % width for end in ends)
    # Ends at one column in several rows are parts of the model, as heads are.
    lone_ends = [end for end in ends if columns[end % width] == 1]
    exponent = min((_exponent(end) for end in lone_ends), default=0)
    return BlockPattern(tuple(runs), exponent, len(lone_ends)) if exponent >= LEAST_EXPONENT else None


def together(patterns: Iterable[tuple[int, BlockPattern]]) -> tuple[list[int], float]:
    """Numbers of the values that have blocks, and the bits of evidence that these make together: for each of
    the values that were looked at is paid, as the most telling ones are chosen.
    """
    numbered = list(patterns)
    # Choosing the most telling ones among n costs log2 n bits each.
    price = math.log2(len(numbered)) if numbered else 0.0
    chosen_numbers = [number for number, pattern in numbered if pattern.bits > price]
    return chosen_numbers, sum(pattern.bits - price for number, pattern in numbered if number in chosen_numbers)


@dataclass(frozen=True)
class Writer:
    """Whose numbers are in a block: value ``number`` of those that were searched, from element ``begin`` on."""

    number: int
    begin: int


def writer_of(
    values: NDArray[np.generic], run: tuple[int, int], candidates: Iterable[tuple[int, NDArray[np.generic]]]
) -> Writer | None:
    """The place where the numbers of a run of wrong elements of ``values`` are, among ``candidates`` by number; None
    where they are nowhere, or say nothing, as a constant does.
    """
    begin, end = run
    piece = values.reshape(-1)[begin : min(end, begin + BLOCK)]
    # Constants and zeros are everywhere, and point to no writer.
    if len(piece) < BLOCK // 8 or len(np.unique(piece)) < len(piece) // 8:
        return None
    block_bytes, item = piece.tobytes(), piece.dtype.itemsize
    for number, candidate in candidates:
        if candidate.dtype != piece.dtype:
            continue
        candidate_bytes = np.ascontiguousarray(candidate).tobytes()
        at = candidate_bytes.find(block_bytes)
        # A hit between two elements is a coincidence of bytes.
        while at >= 0 and at % item:
            at = candidate_bytes.find(block_bytes, at + 1)
        if at >= 0:
            return Writer(number, at // item)
    return None


def _runs_of(wrong: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wrong, [False]]).astype(np.int8)))
    if len(edges) > 4096 * _MOST_RUNS:
        edges = edges[: 4096 * _MOST_RUNS]  # far too many to be blocks
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _closed(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs with the short stretches between them taken in."""
    closed = [runs[0]]
    for begin, end in runs[1:]:
        first, last = closed[-1]
        if (begin - last) * _GAP < min(last - first, max(end - begin, _GAP + 1)):
            closed[-1] = (first, end)
        else:
            closed.append((begin, end))
    return closed


def _exponent(end: int) -> int:
    return (end & -end).bit_length() - 1
