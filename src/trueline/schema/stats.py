"""What was measured of one value: exact counts and extremes, approximate sums. Shards add up to the whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trueline.schema.errors import TruelineError
from trueline.schema.fact import fact

NUM_EXPONENTS = 256
"""Length of ``TensorStats.exponents``, see the column ``exponents`` of ``RECORD_COLUMNS``."""

_MOD = 1 << 64
_BIAS = 127


class MergeError(TruelineError):
    """Statistics that do not belong to one tensor were added up."""


@fact()
class TensorStats:
    """Statistics of one value; ``None`` means not measured.

    Exact, to be compared with ``==``: ``dtype`` (torch's name without 'torch.'), ``shape``, ``numel`` (numbers
    measured, two for each complex element), the five counts, ``min`` and ``max`` over finite numbers (None where
    nothing is finite), ``fingerprint`` (uint64), ``exponents`` (256 counts). Approximate, for a Tolerance to compare:
    ``sum``, ``sum_sq`` and three random ``projections`` (``tensor.projections``) over finite numbers.

    ``a + b`` merges two shards of one tensor that do not overlap. It is commutative, and associative up to the float64
    rounding of the sums. A shard without elements changes nothing. Two shards have no shape of their own: ``shape``
    becomes None, ``merged`` sets it. Fingerprints and projections merge only where they were made as parts of a whole.
    """

    dtype: str
    shape: tuple[int, ...] | None
    numel: int
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    zero: int = 0
    subnormal: int = 0
    min: float | None = None
    max: float | None = None
    sum: float = 0.0
    sum_sq: float = 0.0
    fingerprint: int | None = None
    exponents: tuple[int, ...] | None = None
    projections: tuple[float, ...] | None = None

    @classmethod
    def from_row(
        cls,
        row_S: NDArray[np.float64] | Sequence[float],
        *,
        dtype: str,
        shape: tuple[int, ...] | None,
        numel: int,
        fingerprint: int | None = None,
        exponents: Iterable[int] | None = None,
    ) -> TensorStats:
        """From numbers in the order of ``STAT_NAMES``; NaN for an extreme or a projection that there is not."""
        nan, pos_inf, neg_inf, zero, subnormal, low, high, total, total_sq, *projections = (
            float(value) for value in row_S
        )
        return cls(
            dtype=dtype,
            shape=shape,
            numel=numel,
            nan=int(nan),
            pos_inf=int(pos_inf),
            neg_inf=int(neg_inf),
            zero=int(zero),
            subnormal=int(subnormal),
            min=None if math.isnan(low) else low,
            max=None if math.isnan(high) else high,
            sum=total,
            sum_sq=total_sq,
            fingerprint=None if fingerprint is None else int(fingerprint) % _MOD,
            exponents=None if exponents is None else tuple(int(count) for count in exponents),
            projections=None if any(map(math.isnan, projections)) else tuple(projections),
        )

    def __add__(self, other_part: TensorStats) -> TensorStats:
        """The statistics of both shards together; raises MergeError where their dtypes differ."""
        if self.dtype != other_part.dtype:
            raise MergeError(
                f"Shards of {self.dtype} and {other_part.dtype} cannot be merged; shards of one tensor have one dtype."
            )
        return TensorStats(
            dtype=self.dtype,
            shape=self._shape_with(other_part),
            numel=self.numel + other_part.numel,
            nan=self.nan + other_part.nan,
            pos_inf=self.pos_inf + other_part.pos_inf,
            neg_inf=self.neg_inf + other_part.neg_inf,
            zero=self.zero + other_part.zero,
            subnormal=self.subnormal + other_part.subnormal,
            min=min((value for value in (self.min, other_part.min) if value is not None), default=None),
            max=max((value for value in (self.max, other_part.max) if value is not None), default=None),
            sum=self.sum + other_part.sum,
            sum_sq=self.sum_sq + other_part.sum_sq,
            fingerprint=self._fingerprint_with(other_part),
            exponents=self._exponents_with(other_part),
            projections=self._projections_with(other_part),
        )

    @property
    def finite(self) -> int:
        """Numbers that are neither NaN nor infinite."""
        return self.numel - self.nan - self.pos_inf - self.neg_inf

    @property
    def summed(self) -> bool:
        """Whether sums are known; of imported values it may be that only a checksum, or the extremes, are: NaN stands
        for the sums then.
        """
        return not math.isnan(self.sum)

    @property
    def mean(self) -> float | None:
        """Mean of the finite numbers."""
        return self.sum / self.finite if self.finite and self.summed else None

    @property
    def rms(self) -> float | None:
        """Root of the mean square of the finite numbers."""
        finite = self.finite
        return math.sqrt(self.sum_sq / finite) if finite and self.summed else None

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite numbers."""
        return math.sqrt(self.sum_sq)

    @property
    def std(self) -> float | None:
        """Standard deviation of the finite numbers, dividing by their count.

        It comes from the difference of two sums: where it is below about 1e-3 of the mean, rounding is all there is.
        """
        finite = self.finite
        if not finite:
            return None
        mean = self.sum / finite
        return math.sqrt(max(self.sum_sq / finite - mean * mean, 0.0))

    def quantile(self, fraction: float) -> tuple[float, float] | None:
        """Bounds [low, high) of the ``fraction`` (0-1) quantile of |x| over finite numbers, zeros included.

        The number meant is the ceil(fraction · finite)-th smallest, counted from 1. Bounds are powers of two, as
        exponents are what was counted; (0.0, 0.0) for zero itself. None without exponents or finite numbers. Raises
        ValueError for a fraction outside of 0-1.
        """
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"A quantile of {fraction} was asked for; it must be a fraction from 0 to 1.")
        if self.exponents is None or not self.finite:
            return None
        position = max(math.ceil(fraction * self.finite), 1)
        if position <= self.zero:
            return 0.0, 0.0
        bucket = int(np.searchsorted(np.cumsum(self.exponents), position - self.zero))
        low = 0.0 if bucket == 0 else 2.0 ** (bucket - _BIAS)
        return low, math.inf if bucket >= NUM_EXPONENTS - 1 else 2.0 ** (bucket + 1 - _BIAS)

    def _shape_with(self, other_part: TensorStats) -> tuple[int, ...] | None:
        if self.numel and not other_part.numel:
            return self.shape
        if other_part.numel and not self.numel:
            return other_part.shape
        return self.shape if not self.numel and self.shape == other_part.shape else None

    def _fingerprint_with(self, other_part: TensorStats) -> int | None:
        parts = [part for part in (self, other_part) if part.numel or part.fingerprint is not None]
        values = [part.fingerprint for part in parts if part.fingerprint is not None]
        return sum(values) % _MOD if values and len(values) == len(parts) else None

    def _projections_with(self, other_part: TensorStats) -> tuple[float, ...] | None:
        parts = [part.projections for part in (self, other_part) if part.numel or part.projections is not None]
        measured = [sums_of_part for sums_of_part in parts if sums_of_part is not None]
        if not measured or len(measured) != len(parts):
            return None
        return tuple(sum(sums) for sums in zip(*measured, strict=True))

    def _exponents_with(self, other_part: TensorStats) -> tuple[int, ...] | None:
        parts = [part for part in (self, other_part) if part.numel or part.exponents is not None]
        values = [part.exponents for part in parts if part.exponents is not None]
        if not values or len(values) != len(parts):
            return None
        return tuple(sum(counts) for counts in zip(*values, strict=True))


def merged(parts: Sequence[TensorStats], *, shape: tuple[int, ...]) -> TensorStats:
    """The statistics of a whole tensor of this shape from those of all its shards.

    Raises MergeError where there are none, where dtypes differ, or where the shards have not as many elements as the
    whole: some are missing, overlap, or are replicas.
    """
    if not parts:
        raise MergeError(f"No shard was given for a tensor of shape {list(shape)}; give all of them.")
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    expected = math.prod(shape) * (2 if total.dtype.startswith("complex") else 1)
    if total.numel != expected:
        raise MergeError(
            f"{len(parts)} shards have {total.numel:,} elements, a tensor of shape {list(shape)} has {expected:,}: "
            f"give every shard once, without replicas."
        )
    return replace(total, shape=shape)
