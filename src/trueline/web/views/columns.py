"""Steps as columns of pixels: of the steps that share one, the extremes and what is not finite, never a mean.

T steps, N rows (ranks or machines), B columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.schema.errors import InputError

MEASURED, IS_NAN, IS_POS_INF, IS_NEG_INF = 1, 2, 4, 8
"""Bits of the flags of a cell."""
MAX_COLUMNS = 4096
_MIN_COLUMNS = 16

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Values by row and column [N, B]: the smallest, largest and last finite one (NaN: none), and flags (uint8).

    ``first_B`` and ``end_B`` are the first step of each column and the one after its last.
    """

    first_B: NDArray[np.int64]
    end_B: NDArray[np.int64]
    lo_NB: Floats
    hi_NB: Floats
    last_NB: Floats
    flags_NB: NDArray[np.uint8]


def columns_of(
    steps_T: NDArray[np.int64],
    values_TN: Floats,
    measured_TN: NDArray[np.bool_],
    *,
    first: int | None,
    last: int | None,
    num_columns: int,
) -> Columns:
    """Steps ``first`` to ``last`` in at most ``num_columns`` columns, of as many steps each: a power of two, so that
    neither zooming nor a step more moves what is in a column. Raises ``InputError``.
    """
    if not _MIN_COLUMNS <= num_columns <= MAX_COLUMNS:
        raise InputError(f"Columns asked for: {num_columns}. Ask for {_MIN_COLUMNS} to {MAX_COLUMNS}.")
    low = 0 if first is None else int(np.searchsorted(steps_T, first))
    high = len(steps_T) if last is None else int(np.searchsorted(steps_T, last, side="right"))
    width = 1
    while -(-high // width) - low // width > num_columns:
        width *= 2
    low -= low % width  # columns begin at multiples of their width, so that zooming moves none
    starts_B = np.arange(low, high, width)
    if not starts_B.size:
        empty = np.empty((values_TN.shape[1], 0))
        no_steps = np.empty(0, dtype=np.int64)
        return Columns(no_steps, no_steps, empty, empty, empty, empty.astype(np.uint8))
    window = slice(low, min(starts_B[-1] + width, len(steps_T)))
    steps_T, values_TN, measured_TN = steps_T[window], values_TN[window], measured_TN[window]
    starts_B = starts_B - low
    finite_TN = np.where(measured_TN & np.isfinite(values_TN), values_TN, np.nan)
    flags_TN = np.where(measured_TN, MEASURED, 0).astype(np.uint8)
    flags_TN |= np.where(measured_TN & np.isnan(values_TN), IS_NAN, 0).astype(np.uint8)
    flags_TN |= np.where(measured_TN & np.isposinf(values_TN), IS_POS_INF, 0).astype(np.uint8)
    flags_TN |= np.where(measured_TN & np.isneginf(values_TN), IS_NEG_INF, 0).astype(np.uint8)
    last_BN = finite_TN[starts_B]
    for offset in range(1, width):
        at_B = np.minimum(starts_B + offset, len(finite_TN) - 1)
        last_BN = np.where(np.isfinite(finite_TN[at_B]), finite_TN[at_B], last_BN)
    ends_B = np.append(starts_B[1:], len(steps_T))
    return Columns(
        first_B=steps_T[starts_B],
        end_B=steps_T[ends_B - 1] + 1,
        lo_NB=np.fmin.reduceat(finite_TN, starts_B).T,
        hi_NB=np.fmax.reduceat(finite_TN, starts_B).T,
        last_NB=last_BN.T,
        flags_NB=np.bitwise_or.reduceat(flags_TN, starts_B).T,
    )


def distances_from_median(values_TN: Floats, measured_TN: NDArray[np.bool_]) -> Floats:
    """Each value less the median of all ranks at its step [T, N]; NaN and infinities stay what they are."""
    finite_TN = np.where(measured_TN & np.isfinite(values_TN), values_TN, np.nan)
    with np.errstate(all="ignore"):
        median_T = np.full(len(finite_TN), np.nan)
        num_T = np.isfinite(finite_TN).sum(axis=1)
        whole_T = num_T == max(finite_TN.shape[1], 1)
        median_T[whole_T] = np.median(finite_TN[whole_T], axis=1)  # twenty times as fast as with NaN to leave out
        part_T = (num_T > 0) & ~whole_T
        median_T[part_T] = np.nanmedian(finite_TN[part_T], axis=1)
        return np.where(np.isfinite(values_TN), values_TN - median_T[:, None], values_TN)
