"""The heat map: ranks, or machines, over steps.

T steps, N ranks, H rows, B columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueline.web.answers import Arrays
from trueline.web.views.columns import Columns, apart, columns_of
from trueline.web.views.signals import flagged_of, title_of, values_of, worst_end
from trueline.web.watched_run import WatchedRun

Rows = Literal["rank", "host", "worst"]
"""A row each rank in order, a row each machine, or a row each rank, the one that is farthest from the others on top."""
Shown = Literal["value", "apart"]
"""The value itself, or how far it is from the median of all ranks at that step."""

_CLIPPED = (0.01, 0.99)
"""Quantiles at which colours end, so that one spike does not make all else one colour."""


@dataclass(frozen=True, slots=True)
class Heat:
    """What an answer with the arrays ``value`` float32 [H, B], ``flags`` uint8 [H, B], ``first`` and ``end`` int32 [B]
    shows. ``rows`` are names, ``ranks`` the rank of each row (-1: several). ``worst`` says which of a column's values
    is shown: the lowest, highest, or the one farthest from 0. ``low`` and ``high`` are where colours end; ``smallest``
    and ``largest`` are the extremes (None: nothing is finite).
    """

    signal: str
    title: str
    shown: Shown
    worst: Literal["low", "high", "far"]
    rows: tuple[str, ...]
    ranks: tuple[int, ...]
    flagged: tuple[int, ...]
    steps_per_column: int
    low: float | None
    high: float | None
    smallest: float | None
    largest: float | None
    num_not_finite: int


def heat_of(
    watched: WatchedRun,
    signal: str,
    *,
    first: int | None = None,
    last: int | None = None,
    num_columns: int = 1024,
    rows: Rows = "rank",
    shown: Shown = "value",
) -> Arrays:
    """The cells of a signal between two steps. Raises ``InputError``."""
    run = watched.run
    values_TN, measured_TN = values_of(watched, signal)
    distance_TN = apart(values_TN, measured_TN) if shown == "apart" or rows == "worst" else values_TN
    columns = columns_of(
        run.steps,
        distance_TN if shown == "apart" else values_TN,
        measured_TN,
        first=first,
        last=last,
        num_columns=num_columns,
    )
    worst: Literal["low", "high", "far"] = "far" if shown == "apart" else worst_end(signal)
    cells_NB = _worst(columns, worst)
    hosts = [run.env[rank].hostname if rank in run.env else "" for rank in run.ranks]
    names, ranks, cells_HB, flags_HB = _arranged(run.ranks, hosts, cells_NB, columns.flags_NB, distance_TN, rows, worst)
    finite = cells_HB[np.isfinite(cells_HB)]
    low, high = np.quantile(finite, _CLIPPED).tolist() if finite.size else (None, None)
    first_B = columns.first_B
    width = (
        int(np.searchsorted(run.steps, first_B[1]) - np.searchsorted(run.steps, first_B[0])) if first_B.size > 1 else 1
    )
    head = Heat(
        signal=signal,
        title=title_of(signal.partition("/")[0]),
        shown=shown,
        worst=worst,
        rows=tuple(names),
        ranks=tuple(ranks),
        flagged=flagged_of(watched),
        steps_per_column=width,
        low=low,
        high=high,
        smallest=float(finite.min()) if finite.size else None,
        largest=float(finite.max()) if finite.size else None,
        num_not_finite=int((flags_HB > 1).sum()),
    )
    arrays = {
        "value": cells_HB.astype(np.float32),
        "flags": flags_HB,
        "first": first_B.astype(np.int32),
        "end": columns.end_B.astype(np.int32),
    }
    return Arrays(head, arrays)


def _worst(columns: Columns, worst: Literal["low", "high", "far"]) -> np.ndarray:
    if worst == "far":
        return np.where(np.abs(columns.lo_NB) > np.abs(columns.hi_NB), columns.lo_NB, columns.hi_NB)
    return columns.lo_NB if worst == "low" else columns.hi_NB


def _arranged(
    ranks: list[int],
    hosts: list[str],
    cells_NB: np.ndarray,
    flags_NB: np.ndarray,
    distance_TN: np.ndarray,
    rows: Rows,
    worst: Literal["low", "high", "far"],
) -> tuple[list[str], list[int], np.ndarray, np.ndarray]:
    """Names of rows, their ranks, cells and flags, in the order that was asked for."""
    names = [f"r{rank}" for rank in ranks]
    if rows == "rank" or not ranks:
        return names, list(ranks), cells_NB, flags_NB
    if rows == "worst":
        order = np.argsort(-farthest(distance_TN), kind="stable").tolist()
        return [names[at] for at in order], [ranks[at] for at in order], cells_NB[order], flags_NB[order]
    machines = list(dict.fromkeys(hosts))
    members = [[at for at, host in enumerate(hosts) if host == machine] for machine in machines]
    together = {
        "low": lambda cells: np.fmin.reduce(cells),
        "high": lambda cells: np.fmax.reduce(cells),
        "far": lambda cells: _farther(cells),
    }[worst]
    cells_HB = np.stack([together(cells_NB[each]) for each in members])
    flags_HB = np.stack([np.bitwise_or.reduce(flags_NB[each]) for each in members])
    alone = [ranks[each[0]] if len(each) == 1 else -1 for each in members]
    return [machine or "unknown machine" for machine in machines], alone, cells_HB, flags_HB


def _farther(cells_NB: np.ndarray) -> np.ndarray:
    low_B, high_B = np.fmin.reduce(cells_NB), np.fmax.reduce(cells_NB)
    return np.where(np.abs(low_B) > np.abs(high_B), low_B, high_B)


def farthest(distance_TN: np.ndarray) -> np.ndarray:
    """[N] how far each rank ever was from the median of all; infinite where it had NaN or infinities, 0 for nothing."""
    finite_TN = np.where(np.isfinite(distance_TN), np.abs(distance_TN), 0.0)
    largest_N = finite_TN.max(axis=0) if len(distance_TN) else np.zeros(distance_TN.shape[1])
    return np.where(np.isinf(distance_TN).any(axis=0), np.inf, largest_N)
