"""The trend: a signal of some ranks as lines over steps, and where all others lie; or how far apart the ranks are.

T steps, N ranks, L lines, B columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueline.render.wording import number
from trueline.schema.errors import InputError
from trueline.schema.text.words import counted
from trueline.web.answers import Arrays
from trueline.web.views.columns import columns_of
from trueline.web.views.heat import Quantity, drawn_of, farthest
from trueline.web.views.signals import DISPERSIONS, flagged_of, of_job, title_of
from trueline.web.watched_run import WatchedRun

if TYPE_CHECKING:
    from trueline.judge.series.dispersion import ChanceBand

_QUARTILES = (0.25, 0.5, 0.75)
MAX_LINES = 250
"""Ranks that are drawn one by one; how many more there are is said."""


@dataclass(frozen=True, slots=True)
class Series:
    """What an answer shows, with these arrays.

    - ``low``, ``high``, ``last`` float32 [L, B] and ``flags`` uint8 [L, B]: the lines.
    - ``first`` and ``end`` int32 [B]: the first step of a column, and the one after its last.
    - ``seconds`` and ``tokens`` float32 [B]: what passed between the end of the first step of the Run and that of a
      column's first, on all ranks; NaN where it is not known.
    - ``lowest``, ``lower``, ``median``, ``upper``, ``highest`` float32 [B]: quartiles and median over all ranks of
      their last values, extremes of all values.
    - ``lowest_rank``, ``highest_rank`` int32 [B].

    A signal of the whole job has one line, of rank -1, and as extremes the band of chance; ``said`` is what that band
    means.
    """

    signal: str
    title: str
    shown: Quantity
    ranks: tuple[int, ...]
    flagged: tuple[int, ...]
    pinned: tuple[int, ...]
    hidden: int
    num_ranks: int
    said: str = ""


def series_of(
    watched: WatchedRun,
    signal: str,
    *,
    first: int | None = None,
    last: int | None = None,
    num_columns: int = 1024,
    pinned: Collection[int] = (),
    quantity: Quantity = "value",
    max_lines: int = MAX_LINES,
    other_run: WatchedRun | None = None,
) -> Arrays:
    """Lines of the ranks that are pinned, accused, or farthest from the others. Raises ``InputError``."""
    if field := of_job(signal):
        return _of_job(watched, field, first=first, last=last, num_columns=num_columns)
    run = watched.run
    drawn_TN, measured_TN, distance_TN = drawn_of(watched, signal, quantity, other_run, ordered=True)
    columns = columns_of(run.steps, drawn_TN, measured_TN, first=first, last=last, num_columns=num_columns)
    flagged = flagged_of(watched)
    positions = _positions_drawn(run.ranks, distance_TN, [*pinned, *flagged], min(max_lines, MAX_LINES))
    head = Series(
        signal=signal,
        title=title_of(signal.partition("/")[0]),
        shown=quantity,
        ranks=tuple(run.ranks[at] for at in positions),
        flagged=flagged,
        pinned=tuple(sorted(set(pinned) & set(run.ranks))),
        hidden=len(run.ranks) - len(positions),
        num_ranks=len(run.ranks),
    )
    arrays = {
        "low": columns.lo_NB[positions].astype(np.float32),
        "high": columns.hi_NB[positions].astype(np.float32),
        "last": columns.last_NB[positions].astype(np.float32),
        "flags": columns.flags_NB[positions],
        "first": columns.first_B.astype(np.int32),
        "end": columns.end_B.astype(np.int32),
        **_passed(watched, columns.first_B),
        **_band(columns.lo_NB, columns.hi_NB, columns.last_NB, np.asarray(run.ranks, dtype=np.int32)),
    }
    return Arrays(head, arrays)


def _of_job(watched: WatchedRun, field: str, *, first: int | None, last: int | None, num_columns: int) -> Arrays:
    results = watched.judgement.results
    if field not in DISPERSIONS or results is None:
        raise InputError(f"'job/{field}' cannot be drawn. Ask for one of those that `signals` lists.")
    values_T = getattr(results.dispersion, field)
    columns = columns_of(
        results.dispersion.steps,
        values_T[:, None],
        ~np.isnan(values_T)[:, None],
        first=first,
        last=last,
        num_columns=num_columns,
    )
    band = results.bands.get(field)
    ends = (np.nan, np.nan) if band is None else (band.low, band.high)
    absent_B, no_rank_B = np.full(len(columns.first_B), np.nan), np.full(len(columns.first_B), -1, dtype=np.int32)
    values_by_name = {
        "low": columns.lo_NB,
        "high": columns.hi_NB,
        "last": columns.last_NB,
        "lowest": np.full_like(absent_B, ends[0]),
        "lower": absent_B,
        "median": absent_B,
        "upper": absent_B,
        "highest": np.full_like(absent_B, ends[1]),
    }
    head = Series(f"job/{field}", DISPERSIONS[field][0], "value", (-1,), (), (), 0, 0, _band_text(values_T, band))
    return Arrays(
        head,
        {
            **{name: values.astype(np.float32) for name, values in values_by_name.items()},
            "flags": columns.flags_NB,
            "first": columns.first_B.astype(np.int32),
            "end": columns.end_B.astype(np.int32),
            **_passed(watched, columns.first_B),
            "lowest_rank": no_rank_B,
            "highest_rank": no_rank_B,
        },
    )


def _passed(watched: WatchedRun, first_B: np.ndarray) -> dict[str, np.ndarray]:
    """``seconds`` and ``tokens`` [B] that passed up to steps of the Run, as the axis below may show them."""
    at_B = np.searchsorted(watched.run.steps, first_B)
    ends_TN, tokens_T = watched.pivot("time_ns")[0], watched.tokens_so_far()
    # of all steps there may be a hundred million values; few are needed
    ends_B, began = (
        np.fmin.reduce(ends_TN[at_B], axis=1, initial=np.nan),
        np.fmin.reduce(ends_TN[:1], axis=None, initial=np.nan),
    )
    return {
        "seconds": ((ends_B - began) / 1e9).astype(np.float32),
        "tokens": (tokens_T[at_B] - tokens_T[:1]).astype(np.float32),
    }


def _band_text(values_T: np.ndarray, band: ChanceBand | None) -> str:
    """What the band of chance means, and how many steps lie outside of it, and would if spread were one."""
    if band is None:
        return "There is no band of chance for it."
    finite_T = values_T[np.isfinite(values_T)]
    if not finite_T.any():
        return "No spread at all: the workers have equal values."
    outside = int(((finite_T < band.low) | (finite_T > band.high)).sum())
    expected = number((1 - band.level) * finite_T.size, 2)
    return (
        f"The band holds {band.level:.0%} of standard deviations if values are normal with one spread throughout the "
        f"Run. Outside of it at {outside:,} of {counted(finite_T.size, 'step')}; about {expected} by chance. Where "
        "spread grows or falls as training goes on, healthy steps leave it too: whether workers are too far apart, or "
        "too close, is judged by checks, not by this line."
    )


def _positions_drawn(ranks: list[int], distance_TN: np.ndarray, preferred: list[int], max_lines: int) -> list[int]:
    """Positions of the ranks that are drawn, ascending."""
    first = [ranks.index(rank) for rank in dict.fromkeys(preferred) if rank in ranks]
    by_distance = np.argsort(-farthest(distance_TN), kind="stable").tolist() if ranks else []
    return sorted(list(dict.fromkeys([*first, *by_distance]))[:max_lines])


def _band(lo_NB: np.ndarray, hi_NB: np.ndarray, last_NB: np.ndarray, ranks_N: np.ndarray) -> dict[str, np.ndarray]:
    num_columns = lo_NB.shape[1]
    if not len(ranks_N) or not num_columns:
        absent = np.full(num_columns, np.nan, dtype=np.float32)
        no_rank = np.full(num_columns, -1, dtype=np.int32)
        band = dict.fromkeys(("lowest", "lower", "median", "upper", "highest"), absent)
        return {**band, "lowest_rank": no_rank, "highest_rank": no_rank}
    quartiles_3B = np.full((3, num_columns), np.nan)
    num_B = np.isfinite(last_NB).sum(axis=0)
    whole_B, part_B = num_B == len(last_NB), (num_B > 0) & (num_B < len(last_NB))
    quartiles_3B[:, whole_B] = np.quantile(last_NB[:, whole_B], _QUARTILES, axis=0)
    quartiles_3B[:, part_B] = np.nanquantile(last_NB[:, part_B], _QUARTILES, axis=0)
    lower_B, median_B, upper_B = quartiles_3B
    has_value_B = np.isfinite(last_NB).any(axis=0)
    at_low_B = np.where(np.isfinite(lo_NB), lo_NB, np.inf).argmin(axis=0)
    at_high_B = np.where(np.isfinite(hi_NB), hi_NB, -np.inf).argmax(axis=0)
    all_columns = np.arange(num_columns)
    return {
        "lowest": lo_NB[at_low_B, all_columns].astype(np.float32),
        "lower": lower_B.astype(np.float32),
        "median": median_B.astype(np.float32),
        "upper": upper_B.astype(np.float32),
        "highest": hi_NB[at_high_B, all_columns].astype(np.float32),
        "lowest_rank": np.where(has_value_B, ranks_N[at_low_B], -1).astype(np.int32),
        "highest_rank": np.where(has_value_B, ranks_N[at_high_B], -1).astype(np.int32),
    }
