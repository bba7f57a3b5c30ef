"""Describes the difference between two stored values, and where in them it lies, for the few that people look at.

Letters: n elements, x those of the run, y those of the reference, e = x - y where both are finite, u the unit roundoff
of their dtype, R rows (all dims but the last), C columns (the last dim).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.comparison.judgement.values.distance import MAX_BYTES, Numbers, blocks
from trueline.schema.formats import FORMATS

Floats = NDArray[np.float64]

SHARE = 0.95
"""Fraction of the difference that a named place must contain."""
FEW = 8
"""A place is named where it has at most one in so many of the indices of a dim."""
_BINS = 8
"""Bins of ULP distances per octave: quantiles are at most 9 % too large."""
_ARRAYS = 20
"""Arrays of the size of a block in float64 that are alive at once, and a few sums
(``tests/unit/comparison/judgement/test_stored_values.py``)."""
_LOWEST_BIN, _HIGHEST_BIN = -8 * _BINS, 1100 * _BINS


def describe_difference(
    numbers: Numbers, ref_numbers: Numbers, *, dtype: str, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """The difference of two values of one shape in numbers that people ask for; {} where shapes differ.

    ``max_abs`` with ``max_abs_at`` (index) and ``max_abs_values`` (x and y there); ``cosine``; ``differ_frac`` (0-1) of
    elements that are not equal; ``beyond_frac`` (0-1) of those with |e| > 2u·max(|x|, |y|, g), g the geometric mean of
    |y|: more than one rounding of each side, or of numbers of the usual size; ``ulp_p50``, ``ulp_p90``, ``ulp_p99``,
    ``ulp_max``: |e| in units of the last place of the larger of x and y, upper ends of bins; ``nonfinite`` elements
    that are NaN or infinite in one only; ``where`` as a text, '' where it is everywhere. ``dtype``, without 'torch.',
    is what the numbers were rounded to; one that has no rounding gives no ``beyond_frac`` and no ``ulp_*``. Values are
    read twice and in blocks; at most about ``max_bytes`` are taken.
    """
    if numbers.shape != ref_numbers.shape:
        return {}
    complex_pairs = numbers.dtype.kind == "c" or ref_numbers.dtype.kind == "c"
    shape = (*numbers.shape, 2) if complex_pairs else numbers.shape
    totals = _ElementTotals(shape, dtype, _usual_size(ref_numbers, numbers, max_bytes), max_bytes)
    with np.errstate(all="ignore"):
        for begin, x, y in blocks(numbers, ref_numbers, max_bytes=max_bytes, arrays=_ARRAYS):
            totals.add(begin, x.astype(np.float64), y.astype(np.float64))
    return totals.described()


def _usual_size(ref_numbers: Numbers, numbers: Numbers, max_bytes: int) -> float:
    """Geometric mean of the absolute values of the reference's finite elements but zeros, which few large ones do not
    lift; that of the run's where the reference has none, and 0 where neither has.
    """
    for values in (ref_numbers, numbers):
        total, count = 0.0, 0
        for _, y, _ in blocks(values, values, max_bytes=max_bytes):
            size = np.abs(y.astype(np.float64))
            logs = np.log(size[np.isfinite(size) & (size > 0)])
            total += float(logs.sum())
            count += len(logs)
        if count:
            return math.exp(total / count)
    return 0.0


@dataclass(slots=True)
class _ElementTotals:
    """Of the elements so far."""

    shape: tuple[int, ...]
    dtype: str
    usual_size: float
    max_bytes: int
    xy: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    finite: int = 0
    differ: int = 0
    beyond: int = 0
    nonfinite: int = 0
    largest: tuple[float, int, float, float] = (0.0, -1, 0.0, 0.0)
    ends: tuple[int, int] | None = None
    bad_ends: tuple[int, int] | None = None
    ulps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_HIGHEST_BIN - _LOWEST_BIN + 2, dtype=np.int64))
    weights: _WeightByIndex | None = None
    bad_weights: _WeightByIndex | None = None

    def __post_init__(self) -> None:
        if _WeightByIndex.fits(self.shape, self.max_bytes):
            self.weights, self.bad_weights = _WeightByIndex(self.shape), _WeightByIndex(self.shape)

    def add(self, begin: int, x: Floats, y: Floats) -> None:
        """The elements from ``begin`` on in row-major order."""
        is_finite = np.isfinite(x) & np.isfinite(y)
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        # Of NaN and infinities only their places are compared.
        bad = ~is_finite & ~is_same
        error = np.where(is_finite, x - y, 0.0)
        self.differ += int(len(x) - np.count_nonzero(is_same))
        if bad.any():
            self.nonfinite += int(np.count_nonzero(bad))
            self.bad_ends = _widened(self.bad_ends, begin, bad)
            if self.bad_weights is not None:
                self.bad_weights.add(begin, bad.astype(np.float64))
        self._add_finite(x[is_finite], y[is_finite])
        # The first one counts where several are as large.
        size = np.abs(error)
        at = int(size.argmax())
        if size[at] > self.largest[0]:
            self.largest = (float(size[at]), begin + at, float(x[at]), float(y[at]))
        self._add_roundings(begin, size, np.where(is_finite, np.maximum(np.abs(x), np.abs(y)), 0.0), is_finite)
        if self.weights is not None:
            # Relative to the element, or to the usual size where that is smaller: a few large numbers must not decide.
            weight = np.divide(error**2, np.where(is_finite, y, 0.0) ** 2 + self.usual_size**2)
            self.weights.add(begin, np.nan_to_num(weight, posinf=1e300))

    def _add_finite(self, x: Floats, y: Floats) -> None:
        self.finite += len(x)
        self.xy += float(np.dot(x, y))
        self.xx += float(np.dot(x, x))
        self.yy += float(np.dot(y, y))

    def _add_roundings(self, begin: int, size: Floats, larger: Floats, is_finite: NDArray[np.bool_]) -> None:
        """``size`` [n] is |e| and ``larger`` [n] the larger of |x| and |y|; of elements finite in ``is_finite``."""
        number = FORMATS.get(self.dtype)
        if number is None:
            beyond = size > 0
        else:
            beyond = size > 2 * number.unit * np.maximum(larger, self.usual_size)
            # Below the smallest normal number the grid no longer gets finer.
            step = np.maximum(2 * number.unit * np.exp2(np.frexp(larger)[1] - 1.0), number.smallest)
            weights = np.ceil(np.log2(size / step) * _BINS)
            bins = np.where(size > 0, np.clip(weights, _LOWEST_BIN, _HIGHEST_BIN) - _LOWEST_BIN + 1, 0)
            bins = bins[is_finite].astype(np.int64)
            self.ulps += np.bincount(bins, minlength=len(self.ulps))
        self.beyond += int(np.count_nonzero(beyond))
        self.ends = _widened(self.ends, begin, beyond)

    def described(self) -> dict[str, Any]:
        count = max(math.prod(self.shape), 1)
        facts: dict[str, Any] = {"differ_frac": self.differ / count, "nonfinite": self.nonfinite}
        if self.largest[1] >= 0:
            value, at, x, y = self.largest
            facts |= {"max_abs": value, "max_abs_at": _index(at, self.shape), "max_abs_values": (x, y)}
        if self.xx and self.yy and math.isfinite(self.xx * self.yy):
            facts["cosine"] = max(-1.0, min(1.0, self.xy / math.sqrt(self.xx * self.yy)))
        if self.dtype in FORMATS and self.finite:
            facts["beyond_frac"] = self.beyond / count
            facts |= {f"ulp_p{percent}": self._ulps(percent / 100) for percent in (50, 90, 99)}
            facts["ulp_max"] = self._ulps(1.0)
        facts["where"] = self._where(count)
        return facts

    def _ulps(self, fraction: float) -> float:
        rank = max(math.ceil(fraction * self.finite), 1)
        bin_index = int(np.searchsorted(np.cumsum(self.ulps), rank))
        return 0.0 if bin_index == 0 else 2.0 ** ((bin_index - 1 + _LOWEST_BIN) / _BINS)

    def _where(self, count: int) -> str:
        """The place where NaN and infinities differ, if they do; else where finite numbers differ."""
        weights, ends = (self.bad_weights, self.bad_ends) if self.nonfinite else (self.weights, self.ends)
        by_dim = weights.in_words() if weights is not None else ""
        if by_dim or ends is None or count < FEW:
            return by_dim
        first, last = ends
        if last - first + 1 > count // FEW:
            return ""
        many = f"elements {first:,} to {last:,}" if last > first else f"element {first:,}"
        return f"{many} of {count:,} in row-major order"


class _WeightByIndex:
    """The weight at each index of each dim: sums by row [R] and by column [C]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape or (1,)
        self._columns = np.zeros(self._shape[-1])
        self._rows = np.zeros(math.prod(self._shape[:-1]))

    @staticmethod
    def fits(shape: tuple[int, ...], max_bytes: int) -> bool:
        """True where the sums of two of these take no more than half of so many bytes."""
        shape = shape or (1,)
        return 2 * 8 * (shape[-1] + math.prod(shape[:-1])) <= max_bytes // 2

    def add(self, begin: int, weight: Floats) -> None:
        """Weights of the elements from ``begin`` on in row-major order: the end of a row, whole rows, part of a row."""
        width = len(self._columns)
        num_added = 0
        while num_added < len(weight):
            row, column = divmod(begin + num_added, width)
            rows = 1 if column else max((len(weight) - num_added) // width, 1)
            piece = weight[num_added : num_added + rows * width - column]
            part = piece.reshape(rows, -1)
            self._rows[row : row + rows] += part.sum(axis=1)
            self._columns[column : column + part.shape[1]] += part.sum(axis=0)
            num_added += len(piece)

    def in_words(self) -> str:
        """The dims along which few indices have nearly all of the weight; '' where there are none."""
        rows = self._rows.reshape(self._shape[:-1] or (1,))
        dims = [
            rows.sum(axis=tuple(summed_dim for summed_dim in range(rows.ndim) if summed_dim != dim))
            for dim in range(len(self._shape) - 1)
        ]
        texts = [_indices_text(dim, sums) for dim, sums in enumerate([*dims, self._columns])]
        return " and ".join(text for text in texts if text)


def _indices_text(dim: int, sums: Floats) -> str:
    """``index 17 of 4,096 along dim 2``; '' where ``SHARE`` of the sum takes more than one in ``FEW`` indices."""
    size, total = len(sums), float(sums.sum())
    if size < 2 or not total > 0:
        return ""
    order = np.argsort(-sums, kind="stable")
    # Few indices with nearly all of the difference are named; more are no place.
    needed = int(np.searchsorted(np.cumsum(sums[order]), SHARE * total)) + 1
    if needed > max(size // FEW, 1):
        return ""
    indices = sorted(order[:needed].tolist())
    indices_text = f"index {indices[0]:,}" if needed == 1 else f"indices {_list_text(indices)}"
    return f"{indices_text} of {size:,} along dim {dim}"


def _list_text(indices: Sequence[int]) -> str:
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices) > 2:
        return f"{first:,} to {last:,}"
    text = ", ".join(f"{index:,}" for index in indices[:4])
    return text if len(indices) <= 4 else f"{text}, … ({len(indices):,})"


def _index(flat: int, shape: tuple[int, ...]) -> list[int]:
    return [int(coordinate) for coordinate in np.unravel_index(flat, shape)] if shape else []


def _widened(ends: tuple[int, int] | None, begin: int, marked: NDArray[np.bool_]) -> tuple[int, int] | None:
    """First and last of all marked elements in row-major order."""
    if not marked.any():
        return ends
    first = begin + int(marked.argmax())
    last = begin + len(marked) - 1 - int(marked[::-1].argmax())
    return (first if ends is None else ends[0], last)
