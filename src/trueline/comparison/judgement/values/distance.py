"""How far a value is from its reference: exactly where both were stored, as a lower estimate from statistics.

Letters: n numbers of a value, x those of the run, y those of the reference, e = x - y. |.| is the Euclidean norm over
elements that are finite in both. All distances are relative: |e| / |y|, or |e| / |x| where y is zero throughout.

The distance that statistics give is the largest of four estimates, the first three too low rather than too high:

- ||x| - |y|| / |y|. Exact for a change of scale. Errors that are independent of the numbers cancel in it, and it is
  too low by about sqrt(n).
- the change of an extreme, over the largest absolute number or |y|·sqrt(2 ln n / n), whichever is more; the second
  is the expected largest of n normal numbers. Right for errors proportional to numbers; for errors of one size too
  low by sqrt(2 ln n) or more. One element stands for all, so a change by one step of the dtype's grid counts
  nothing: s steps count as sqrt(s² - 1).
- |sum of e'| / (|y| sqrt(rows)), where e' is e, or e without the change of scale that the norms tell if that leaves
  less. Independent errors have a sum of about sqrt(n)·rms(e) = |e|, for which it is too low by sqrt(rows). Errors
  that all rows share, as those of a weight or a bias are, add up to sqrt(rows) times that, for which it is true; an
  error that all elements share, to sqrt(n)·|e|, for which it is too high by up to the root of the row's length:
  rounding makes none.

- the root mean square of the differences of the three projections (``tensor.projections``), over |y|: not a lower but a
  fair estimate, whatever the errors are. Three times as much is ``Distance.most_rel``, an upper bound in 19 of 20
  cases. Masks are not in it, and where there are any, |y| is the root mean square of the projections too.

The uncertainty of the recorder's own sums is subtracted. ``tests/unit/comparison/judgement/values/test_distance.py``
compares the estimate with exact distances of tensors.

Certain (``certain_rel``) is the largest of | |x| - |y| |, |sum of e| / sqrt(n) and the changes of the extremes, over
|y|: the reversed triangle inequality, Cauchy's, and max |e| <= |e|. 0 where NaN or infinities keep the statistics from
being about the same elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.judge.recorded.stored_tensors import ArrayValue, Stored
from trueline.schema.fact import fact
from trueline.schema.formats import MASKS
from trueline.schema.stats import TensorStats

Numbers = NDArray[Any] | Stored
"""An array, or a stored value that is read in blocks."""

MAX_BYTES = 256 * 2**20
"""Memory that a distance between stored tensors may take, whatever their size, unless a caller says otherwise."""

_COUNTS = ("nan", "pos_inf", "neg_inf", "zero", "subnormal")
_STATISTICS = ("numel", *_COUNTS, "min", "max", "sum", "sum_sq")
_OF_STATISTICS = attrgetter(*_STATISTICS)
_SUMMED_APART = 4096
"""Numbers up to which the recorder adds in float64 whatever the dtype (``tensor.lanes.SMALL``)."""
_OF_SET = attrgetter("numel", *_COUNTS, "min", "max")
_PROJECTION_ERROR = 4.0
"""Units roundoff of float32, over the norm, that two projections of the same numbers may be apart: the kernel, NumPy
and Triton add in another order (``tests/unit/tensor/test_projections.py``)."""
_FEW = 4
"""Numbers that are rounded the other way in one run, by one step of the grid each: two of them cancel in all three
projections in one case of eight, four in one of nineteen."""
_HARDLY = 3.0
"""Root of 3 over the 5 % quantile 0.352 of chi-square with three degrees of freedom."""
_REORDERED = 1e-3
"""The distance below which equal counts, extremes and sums do not say that numbers only changed places."""
_SUM_ERROR = 16.0
"""Units roundoff, of what the recorder adds in, that two sums may be apart although the numbers are the same, over
|sum| + |y| for sums and |y|² for sums of squares. Twice the most that ``tensor.measure`` was off by on six
distributions of 5,000 to 4,000,000 numbers (``tests/unit/comparison/judgement/values/test_distance.py``); the most
is for equal numbers."""
_BLOCK_BYTES = 128 * 2**10
"""What one block of a side takes in float64 at most: blocks of this size stay in the cache."""
_ARRAYS = 6
"""Arrays of the size of a block in float64 that are alive at once."""


@fact()
class Distance:
    """The distance of two values.

    ``equal``: the same bits, as far as ``how`` can show; None where dtypes differ, so that bits cannot be compared,
    though numbers may agree. ``rel``: relative distance, 0 and up; None where nothing can be compared (other
    numbers of elements, nothing finite in both). Of statistics it is an estimate, see above.
    ``certain_rel``: a lower bound of it that holds whatever the elements; of tensors the same as ``rel``.
    ``most_rel``: of statistics, what the distance hardly exceeds; None where nothing tells, and of tensors.
    ``reordered``: the same numbers in another order, as far as statistics show.
    ``factor``: of a value that is a multiple of the reference, which rounding does not make (``multiple``), how many
    times it is that.
    ``nonfinite_differ``: NaN or infinities differ in place or number. ``details``: what differs, by name.
    """

    equal: bool | None
    rel: float | None
    how: Literal["tensor", "fingerprint", "statistics"]
    certain_rel: float | None = None
    nonfinite_differ: bool = False
    most_rel: float | None = None
    reordered: bool = False
    factor: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def size_text(self) -> str:
        """``about 0.02 of its norm``: an estimate, unless values were stored; without projections rather too low."""
        how = "" if self.how == "tensor" else "at least about " if self.most_rel is None else "about "
        return f"{how}{self.rel or 0.0:.2g} of its norm"


def stats_distance(stats: TensorStats, ref_stats: TensorStats, *, rows: int) -> Distance:
    """The distance from fingerprints and statistics; ``rows`` is n over the length of the last dim.

    The head of this file has the four estimates that ``rel`` is the largest of, and the bounds of ``certain_rel``.
    """
    nonfinite_differ = (stats.nan, stats.pos_inf, stats.neg_inf) != (
        ref_stats.nan,
        ref_stats.pos_inf,
        ref_stats.neg_inf,
    )
    if stats.numel != ref_stats.numel:
        details = {"numel": (stats.numel, ref_stats.numel)}
        return Distance(False, None, "statistics", nonfinite_differ=nonfinite_differ, details=details)
    same_dtype = stats.dtype == ref_stats.dtype
    prints = stats.fingerprint, ref_stats.fingerprint
    # A fingerprint is of bits: it says nothing across dtypes.
    if same_dtype and None not in prints and prints[0] == prints[1]:
        return Distance(True, 0.0, "fingerprint", certain_rel=0.0)
    different = _different_statistics(stats, ref_stats)
    if not different and (not same_dtype or None in prints):
        return Distance(True, 0.0, "statistics", certain_rel=0.0)
    masked, unit = _has_masks(stats) or _has_masks(ref_stats), _coarser_unit(stats, ref_stats)
    estimate, certain = _estimates(stats, ref_stats, rows=max(rows, 1), unit=unit)
    projected = _projected(stats, ref_stats, masked=masked, unit=unit) if estimate is not None else None
    farthest = math.inf
    if estimate is not None:
        # Estimates may be off by several times; two vectors are no farther apart than both are long.
        norm = ref_stats.norm
        if norm and not masked:
            farthest = (stats.norm + norm) / norm
        # Projections see every direction, the other estimates only some: the larger one is nearer.
        estimate = min(max(estimate, 0.0 if projected is None else projected.rel), farthest)
    return Distance(
        False if same_dtype else None,
        estimate,
        "statistics",
        most_rel=None if projected is None or estimate is None else min(max(estimate, projected.largest_rel), farthest),
        reordered=projected is not None and _is_reordered(stats, ref_stats, projected.rel),
        certain_rel=0.0 if stats.finite < stats.numel or ref_stats.finite < ref_stats.numel else certain,
        nonfinite_differ=nonfinite_differ,
        details=different,
    )


def tensor_distance(numbers: Numbers, ref_numbers: Numbers, *, max_bytes: int = MAX_BYTES) -> Distance:
    """The distance between two values with the same number of elements, in row-major order, read once in blocks.
    Masks (``finfo.min``) that both have at one place are left out: beside them nothing else would show.

    Stored values may be larger than memory: at most ``max_bytes`` are taken. Where dtypes
    differ, ``equal`` is about numbers. Raises TypeError for what NumPy cannot take as numbers.
    """
    if numbers.size != ref_numbers.size:
        return Distance(False, None, "tensor", details={"numel": (numbers.size, ref_numbers.size)})
    sums = _sums(numbers, ref_numbers, max_bytes, scale=1.0)
    # Squares of huge or tiny numbers leave the range of float64; a power of two brings them back exactly.
    if not math.isfinite(sums.error_sq + sums.ref_sq) or _vanished(sums):
        sums = _sums(numbers, ref_numbers, max_bytes, scale=_scale(numbers, ref_numbers, max_bytes))
    rel = None if numbers.size and not sums.both_finite else _relative(sums.error_sq, sums.ref_sq)
    return Distance(
        sums.equal,
        rel,
        "tensor",
        certain_rel=rel,
        nonfinite_differ=sums.nonfinite_differ,
    )


def blocks(
    numbers: Numbers, ref_numbers: Numbers, *, max_bytes: int = MAX_BYTES, arrays: int = _ARRAYS
) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """Pieces of both, flat and in row-major order, with the index of their first element; complex numbers as
    pairs of real ones, booleans as uint8. ``arrays`` of that size in float64 take ``max_bytes``.
    """
    block_size = max(1, min(_BLOCK_BYTES, max_bytes // arrays) // 8)
    stored, ref_stored = (side if isinstance(side, Stored) else ArrayValue(side) for side in (numbers, ref_numbers))
    for begin in range(0, stored.size, block_size):
        end = min(begin + block_size, stored.size)
        yield begin, _real(stored.read_range(begin, end)), _real(ref_stored.read_range(begin, end))


def _different_statistics(stats: TensorStats, ref_stats: TensorStats) -> dict[str, Any]:
    """The statistics that differ, those of the run first."""
    triples = zip(_STATISTICS, _OF_STATISTICS(stats), _OF_STATISTICS(ref_stats), strict=True)
    different: dict[str, Any] = {name: (value, ref_value) for name, value, ref_value in triples if value != ref_value}
    if stats.exponents is not None and ref_stats.exponents is not None and stats.exponents != ref_stats.exponents:
        moved = sum(abs(a - b) for a, b in zip(stats.exponents, ref_stats.exponents, strict=True))
        different["exponents"] = (moved, 0)
    if (
        stats.projections is not None
        and ref_stats.projections is not None
        and stats.projections != ref_stats.projections
    ):
        different["projections"] = (stats.projections, ref_stats.projections)
    return different


def _estimates(
    stats: TensorStats, ref_stats: TensorStats, *, rows: int, unit: float
) -> tuple[float | None, float | None]:
    """The estimate and the lower bound of the relative distance; None where nothing finite is on both sides."""
    count, norm, own_norm = ref_stats.finite, ref_stats.norm, stats.norm
    if not count or not stats.finite:
        return None, None
    if not norm:
        return (1.0, 1.0) if own_norm else (0.0, 0.0)
    if not math.isfinite(norm + own_norm):
        return None, None
    uncertain = _SUM_ERROR * _sum_roundoff(stats, ref_stats)
    scale, moved, total = (own_norm - norm) / norm, stats.sum - ref_stats.sum, abs(ref_stats.sum)
    norm_change = max(abs(scale) - uncertain / 2, 0.0)
    sum_change = max(abs(moved) - uncertain * (total + norm), 0.0)
    unscaled = min(abs(moved), abs(moved - scale * ref_stats.sum)) - uncertain * (2 * total + norm)
    (own_low, own_high), (low, high) = _extremes(stats), _extremes(ref_stats)
    lower, upper = abs(own_low - low), abs(own_high - high)
    beyond = max(
        _beyond_step(lower, unit, max(abs(own_low), abs(low))), _beyond_step(upper, unit, max(abs(own_high), abs(high)))
    )
    largest = max(norm * math.sqrt(2 * math.log(count) / count), abs(low), abs(high))
    estimate = max(norm_change, beyond / (largest or norm), unscaled / (norm * math.sqrt(rows)))
    return estimate, max(norm_change, max(lower, upper, sum_change / math.sqrt(count)) / norm)


class _Projected(NamedTuple):
    """The relative distance that projections estimate, and what it hardly exceeds."""

    rel: float
    largest_rel: float


def _projected(stats: TensorStats, ref_stats: TensorStats, *, masked: bool, unit: float) -> _Projected | None:
    """None where one side has no projections, or where the two leave out other numbers as masks."""
    p, q = stats.projections, ref_stats.projections
    if p is None or q is None or (stats.dtype != ref_stats.dtype and masked):
        return None
    norm = _rms(q) if masked else ref_stats.norm
    if not norm:
        return None
    moved = _rms([a - b for a, b in zip(p, q, strict=True)])
    uncertain = _PROJECTION_ERROR * UNIT_ROUNDOFF["float32"] * (norm + (_rms(p) if masked else stats.norm))
    steps = 2 * unit * math.sqrt(_FEW / max(ref_stats.finite, 1))
    return _Projected(math.sqrt(max(moved**2 - uncertain**2, 0.0)) / norm, (_HARDLY * moved + uncertain) / norm + steps)


def _rms(numbers: Sequence[float]) -> float:
    return math.sqrt(sum([number * number for number in numbers]) / len(numbers))


def _has_masks(stats: TensorStats) -> bool:
    low, high = _extremes(stats)
    return max(-low, high) >= MASKS.get(stats.dtype, math.inf)


def _is_reordered(stats: TensorStats, ref_stats: TensorStats, rel: float) -> bool:
    """True where numbers changed places: counts and extremes are equal, sums are so up to the order of addition, and
    the projections differ by more than rounding could move them.
    """
    if stats.dtype != ref_stats.dtype or rel <= _REORDERED or _OF_SET(stats) != _OF_SET(ref_stats):
        return False
    room = _SUM_ERROR * UNIT_ROUNDOFF["float64" if _adds_in_float64(stats.dtype) else "float32"]
    return (
        abs(stats.sum - ref_stats.sum) <= room * (abs(ref_stats.sum) + ref_stats.norm)
        and abs(stats.norm - ref_stats.norm) <= room * ref_stats.norm
        and stats.exponents == ref_stats.exponents
    )


def _extremes(stats: TensorStats) -> tuple[float, float]:
    return (0.0 if stats.min is None else stats.min, 0.0 if stats.max is None else stats.max)


def _sum_roundoff(stats: TensorStats, ref_stats: TensorStats) -> float:
    """Unit roundoff of the dtype in which the recorder adds numbers of these dtypes."""
    wide = ref_stats.numel <= _SUMMED_APART or (_adds_in_float64(stats.dtype) and _adds_in_float64(ref_stats.dtype))
    return UNIT_ROUNDOFF["float64" if wide else "float32"]


def _adds_in_float64(dtype: str) -> bool:
    return dtype in ("float64", "complex128") or not dtype.startswith(("float", "bfloat", "complex"))


def _coarser_unit(stats: TensorStats, ref_stats: TensorStats) -> float:
    """Unit roundoff of the coarser of both dtypes; 0 for those without a grid."""
    return max(UNIT_ROUNDOFF.get(stats.dtype, 0.0), UNIT_ROUNDOFF.get(ref_stats.dtype, 0.0))


def _beyond_step(change: float, unit: float, value: float) -> float:
    """The part of a change that exceeds one step, at ``value``, of the grid of unit roundoff ``unit``."""
    step = 2 * unit * 2.0 ** (math.frexp(value)[1] - 1) if value else 0.0
    return math.sqrt(max(change**2 - step**2, 0.0))


@dataclass(slots=True)
class _Sums:
    """Sums over the elements seen so far, numbers multiplied by the scale."""

    equal: bool = True
    nonfinite_differ: bool = False
    both_finite: int = 0
    error_sq: float = 0.0
    ref_sq: float = 0.0


def _sums(numbers: Numbers, ref_numbers: Numbers, max_bytes: int, *, scale: float) -> _Sums:
    sums = _Sums()
    with np.errstate(over="ignore", invalid="ignore"):
        for _, x, y in blocks(numbers, ref_numbers, max_bytes=max_bytes):
            _add_block(sums, x, y, scale)
    return sums


def _add_block(sums: _Sums, x: NDArray[Any], y: NDArray[Any], scale: float) -> None:
    """Add the sums of a block; only one with NaN or infinities is examined element by element."""
    is_same = x.dtype == y.dtype and np.array_equal(_bits(x), _bits(y))
    wide_y = _wide(y, scale)
    ref_sq = float(np.dot(wide_y, wide_y))
    error: NDArray[np.float64] | None = None if is_same else _wide(x, scale) - wide_y
    # Few blocks have masks: the norm tells before all elements are looked at.
    if not math.sqrt(ref_sq) < scale * _mask_of(y):
        masked = _masks(x) & _masks(y) & (np.signbit(x) == np.signbit(y))
        wide_y = np.where(masked, 0.0, wide_y)
        ref_sq = float(np.dot(wide_y, wide_y))
        error = None if error is None else np.where(masked, 0.0, error)
    error_sq = 0.0 if error is None else float(np.dot(error, error))
    finite = len(y)
    # Only now is it known that something is not finite; most blocks are spared the test.
    if not math.isfinite(error_sq + ref_sq):
        nonfinite_differ, is_finite = _nonfinite(x, y)
        sums.nonfinite_differ |= nonfinite_differ
        finite = int(np.count_nonzero(is_finite))
        ref_sq = float(np.square(wide_y[is_finite]).sum())
        error_sq = 0.0 if error is None else float(np.square(error[is_finite]).sum())
    if not is_same and (x.dtype == y.dtype or not np.array_equal(_wide(x, 1.0), _wide(y, 1.0), equal_nan=True)):
        sums.equal = False
    sums.both_finite += finite
    sums.ref_sq += ref_sq
    sums.error_sq += error_sq


def _mask_of(block: NDArray[Any]) -> float:
    """The magnitude from which on numbers of a block are taken for masks: they are the lowest that there is."""
    return float(np.finfo(block.dtype).max) / 2 if block.dtype.kind == "f" else math.inf


def _masks(block: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(block) & (np.abs(block) >= _mask_of(block))


def _nonfinite(x: NDArray[Any], y: NDArray[Any]) -> tuple[bool, NDArray[np.bool_]]:
    """(nonfinite_differ, is_finite): the latter [n] marks elements that are finite in both."""
    is_finite = np.isfinite(x) & np.isfinite(y)
    is_same = is_finite | (np.isnan(x) & np.isnan(y)) | (x == y)
    return not bool(is_same.all()), is_finite


def _vanished(sums: _Sums) -> bool:
    """True where squares may have been lost below the range of float64 although numbers differ, or are not zero."""
    return not sums.equal and min(sums.error_sq, sums.ref_sq) < np.finfo(np.float64).tiny / np.finfo(np.float64).eps


def _scale(numbers: Numbers, ref_numbers: Numbers, max_bytes: int) -> float:
    """A power of two that brings the largest finite number of both near to 1."""
    largest = 0.0
    for _, x, y in blocks(numbers, ref_numbers, max_bytes=max_bytes):
        for part in (x, y):
            size = np.abs(_wide(part, 1.0))
            largest = max(largest, float(np.max(size, where=np.isfinite(size), initial=0.0)))
    return 2.0 ** -min(max(math.frexp(largest)[1], -1000), 1000) if largest else 1.0


def _relative(error_sq: float, ref_sq: float) -> float:
    """|e| / |y|; 1 where y is zero and x is not, as e is then x."""
    if not error_sq:
        return 0.0
    return math.sqrt(error_sq / ref_sq) if ref_sq else 1.0


def _real(block: NDArray[Any]) -> NDArray[Any]:
    if block.dtype.kind == "c":
        return block.view(f"f{block.dtype.itemsize // 2}")
    if block.dtype.kind not in "fiub":
        raise TypeError(f"Values of {block.dtype} are no numbers; give floats, integers, booleans or complex ones.")
    return block.view(np.uint8) if block.dtype.kind == "b" else block


def _bits(block: NDArray[Any]) -> NDArray[Any]:
    return block.view(f"u{block.dtype.itemsize}") if block.dtype.itemsize in (1, 2, 4, 8) else block


def _wide(block: NDArray[Any], scale: float) -> NDArray[np.float64]:
    wide = block.astype(np.float64, copy=False)
    return wide if scale == 1.0 else wide * scale
