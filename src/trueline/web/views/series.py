"""The trend: a signal of some ranks as lines over steps, and where all others lie.

T steps, N ranks, L lines, B columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trueline.web.answers import Arrays
from trueline.web.views.columns import apart, columns_of
from trueline.web.views.heat import Shown, farthest
from trueline.web.views.signals import flagged_of, title_of, values_of
from trueline.web.watched_run import WatchedRun

_QUARTILES = (0.25, 0.5, 0.75)
MAX_LINES = 250
"""Ranks that are drawn one by one; how many more there are is said."""


@dataclass(frozen=True, slots=True)
class Series:
    """What an answer shows with the arrays ``low``, ``high``, ``last`` float32 [L, B] and ``flags`` uint8 [L, B] of the
    lines, ``first`` and ``end`` int32 [B], and over all ranks ``lowest``, ``lower``, ``median``, ``upper``, ``highest``
    float32 [B] (extremes, quartiles and median of the ranks' last values; extremes of all values) and ``lowest_rank``,
    ``highest_rank`` int32 [B].
    """

    signal: str
    title: str
    shown: Shown
    ranks: tuple[int, ...]
    flagged: tuple[int, ...]
    pinned: tuple[int, ...]
    hidden: int
    num_ranks: int


def series_of(
    watched: WatchedRun,
    signal: str,
    *,
    first: int | None = None,
    last: int | None = None,
    num_columns: int = 1024,
    pinned: Collection[int] = (),
    shown: Shown = "value",
    max_lines: int = MAX_LINES,
) -> Arrays:
    """Lines of the ranks that are pinned, accused, or farthest from the others. Raises ``InputError``."""
    run = watched.run
    values_TN, measured_TN = values_of(watched, signal)
    distance_TN = apart(values_TN, measured_TN)
    drawn_TN = distance_TN if shown == "apart" else values_TN
    columns = columns_of(run.steps, drawn_TN, measured_TN, first=first, last=last, num_columns=num_columns)
    flagged = flagged_of(watched)
    chosen = _chosen(run.ranks, distance_TN, [*pinned, *flagged], min(max_lines, MAX_LINES))
    head = Series(
        signal=signal,
        title=title_of(signal.partition("/")[0]),
        shown=shown,
        ranks=tuple(run.ranks[at] for at in chosen),
        flagged=flagged,
        pinned=tuple(sorted(set(pinned) & set(run.ranks))),
        hidden=len(run.ranks) - len(chosen),
        num_ranks=len(run.ranks),
    )
    arrays = {
        "low": columns.lo_NB[chosen].astype(np.float32),
        "high": columns.hi_NB[chosen].astype(np.float32),
        "last": columns.last_NB[chosen].astype(np.float32),
        "flags": columns.flags_NB[chosen],
        "first": columns.first_B.astype(np.int32),
        "end": columns.end_B.astype(np.int32),
        **_band(columns.lo_NB, columns.hi_NB, columns.last_NB, np.asarray(run.ranks, dtype=np.int32)),
    }
    return Arrays(head, arrays)


def _chosen(ranks: list[int], distance_TN: np.ndarray, wanted: list[int], max_lines: int) -> list[int]:
    """Positions of the ranks that are drawn, ascending."""
    first = [ranks.index(rank) for rank in dict.fromkeys(wanted) if rank in ranks]
    others = np.argsort(-farthest(distance_TN), kind="stable").tolist() if ranks else []
    return sorted(list(dict.fromkeys([*first, *others]))[:max_lines])


def _band(lo_NB: np.ndarray, hi_NB: np.ndarray, last_NB: np.ndarray, ranks_N: np.ndarray) -> dict[str, np.ndarray]:
    num_columns = lo_NB.shape[1]
    if not len(ranks_N) or not num_columns:
        nothing = np.full(num_columns, np.nan, dtype=np.float32)
        nobody = np.full(num_columns, -1, dtype=np.int32)
        band = dict.fromkeys(("lowest", "lower", "median", "upper", "highest"), nothing)
        return {**band, "lowest_rank": nobody, "highest_rank": nobody}
    quartiles_3B = np.full((3, num_columns), np.nan)
    num_B = np.isfinite(last_NB).sum(axis=0)
    whole_B, part_B = num_B == len(last_NB), (num_B > 0) & (num_B < len(last_NB))
    quartiles_3B[:, whole_B] = np.quantile(last_NB[:, whole_B], _QUARTILES, axis=0)
    quartiles_3B[:, part_B] = np.nanquantile(last_NB[:, part_B], _QUARTILES, axis=0)
    lower_B, median_B, upper_B = quartiles_3B
    some_B = np.isfinite(last_NB).any(axis=0)
    at_low_B = np.where(np.isfinite(lo_NB), lo_NB, np.inf).argmin(axis=0)
    at_high_B = np.where(np.isfinite(hi_NB), hi_NB, -np.inf).argmax(axis=0)
    everything = np.arange(num_columns)
    return {
        "lowest": lo_NB[at_low_B, everything].astype(np.float32),
        "lower": lower_B.astype(np.float32),
        "median": median_B.astype(np.float32),
        "upper": upper_B.astype(np.float32),
        "highest": hi_NB[at_high_B, everything].astype(np.float32),
        "lowest_rank": np.where(some_B, ranks_N[at_low_B], -1).astype(np.int32),
        "highest_rank": np.where(some_B, ranks_N[at_high_B], -1).astype(np.int32),
    }
