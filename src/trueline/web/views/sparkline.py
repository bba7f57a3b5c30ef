"""The number that an incident is about, small: the accused ranks, and where the others lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueline.schema.law import facts_of
from trueline.web.views.columns import columns_of
from trueline.web.watched_run import WatchedRun

_NUM_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values by column [B], None where nothing is finite: the accused (the one farthest from the others' median), and
    the lowest, median and highest of the others. ``first`` are the first steps of the columns, ``not_finite`` the
    columns in which an accused rank has NaN or infinities.
    """

    signal: str
    first: tuple[int, ...]
    accused: tuple[float | None, ...]
    lowest: tuple[float | None, ...]
    median: tuple[float | None, ...]
    highest: tuple[float | None, ...]
    not_finite: tuple[int, ...]


def signal_of(code: str) -> str:
    """The column that findings of a code are about; "" for those that are about no number over steps."""
    return facts_of(code).signal


def sparkline_of(watched: WatchedRun, signal: str, ranks: Sequence[int]) -> Sparkline | None:
    """The line of ``ranks`` among the others; None where there is no such number."""
    run = watched.run
    if not signal or not run.steps.size:
        return None
    values_TN, measured_TN = watched.pivot(signal)
    if not measured_TN.any():
        return None
    columns = columns_of(run.steps, values_TN, measured_TN, first=None, last=None, num_columns=_NUM_COLUMNS)
    accused_N = np.isin(run.ranks, list(ranks))
    if not accused_N.any() or accused_N.all():
        accused_N = np.zeros(len(run.ranks), dtype=bool)
    others_NB = columns.last_NB[~accused_N]
    median_B = _over_ranks(np.nanmedian, others_NB)
    low_B, high_B = _over_ranks(np.nanmin, columns.lo_NB[accused_N]), _over_ranks(np.nanmax, columns.hi_NB[accused_N])
    far_B = np.where(np.abs(low_B - median_B) > np.abs(high_B - median_B), low_B, high_B)
    return Sparkline(
        signal=signal,
        first=tuple(columns.first_B.tolist()),
        accused=_plain(far_B),
        lowest=_plain(_over_ranks(np.nanmin, columns.lo_NB[~accused_N])),
        median=_plain(median_B),
        highest=_plain(_over_ranks(np.nanmax, columns.hi_NB[~accused_N])),
        not_finite=tuple(np.flatnonzero((columns.flags_NB[accused_N] > 1).any(axis=0)).tolist()),
    )


def _over_ranks(reduce: object, values_NB: np.ndarray) -> np.ndarray:
    out_B = np.full(values_NB.shape[1], np.nan)
    some_B = np.isfinite(values_NB).any(axis=0)
    if some_B.any():  # NumPy reduces no array without rows, not even to nothing
        out_B[some_B] = reduce(values_NB[:, some_B], axis=0)  # type: ignore[operator]
    return out_B


def _plain(values_B: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values_B)
