"""The heat map: ranks, machines, or parameter groups over steps.

T steps, N ranks, K parameter groups, H rows, B columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trueline.schema.errors import InputError
from trueline.web.answers import Arrays
from trueline.web.views.columns import MAX_COLUMNS, Columns, columns_of, distances_from_median
from trueline.web.views.signals import (
    flagged_of,
    groups_of,
    groups_over_ranks,
    of_groups,
    title_of,
    values_of,
    worst_end,
)
from trueline.web.watched_run import WatchedRun

Rows = Literal["rank", "host", "worst"]
"""A row each rank in order, a row each machine, or a row each rank, the one that is farthest from the others on top."""
Quantity = Literal["value", "apart", "relative"]
"""The value itself, how far it is from the median of all ranks at that step, or from that of the same rank and step of
another Run, relative to it.
"""

_CLIPPED = (0.01, 0.99)
"""Quantiles at which colours end, so that one spike does not make all else one colour."""


@dataclass(frozen=True, slots=True)
class Heat:
    """What an answer with the arrays ``value`` float32 [H, B], ``flags`` uint8 [H, B], ``first`` and ``end`` int32 [B]
    shows. ``rows`` are names, ``ranks`` the rank of each row (-1: several), ``marked`` the
    rows with a rank that a finding names, also of a machine. ``worst`` says which of a column's values
    is shown: the lowest, highest, or the one farthest from 0. ``low`` and ``high`` are where colours end; ``smallest``
    and ``largest`` are the extremes (None: nothing is finite). ``over`` says what columns are:
    ``rank`` at one ``step``, else steps.
    """

    signal: str
    title: str
    shown: Quantity
    worst: Literal["low", "high", "far"]
    rows: tuple[str, ...]
    ranks: tuple[int, ...]
    flagged: tuple[int, ...]
    marked: tuple[int, ...]
    steps_per_column: int
    low: float | None
    high: float | None
    smallest: float | None
    largest: float | None
    num_not_finite: int
    over: Literal["step", "rank"] = "step"
    step: int | None = None


def heat_of(
    watched: WatchedRun,
    signal: str,
    *,
    first: int | None = None,
    last: int | None = None,
    num_columns: int = 1024,
    rows: Rows = "rank",
    quantity: Quantity = "value",
    other_run: WatchedRun | None = None,
    step: int | None = None,
) -> Arrays:
    """The cells of a signal between two steps; ``other_run`` is the Run that they are "relative" to.

    Of parameter groups they are over ranks where a ``step`` is given. Raises ``InputError``.
    """
    run = watched.run
    if (column := of_groups(signal)) and step is not None:
        return _over_ranks(watched, column, step)
    if column := of_groups(signal):
        return _of_groups(watched, column, first=first, last=last, num_columns=num_columns)
    drawn_TN, measured_TN, distance_TN = drawn_of(watched, signal, quantity, other_run, ordered=rows == "worst")
    columns = columns_of(run.steps, drawn_TN, measured_TN, first=first, last=last, num_columns=num_columns)
    worst: Literal["low", "high", "far"] = worst_end(signal) if quantity == "value" else "far"
    cells_NB = _worst(columns, worst)
    hosts = [run.env[rank].hostname if rank in run.env else "" for rank in run.ranks]
    names, ranks, cells_HB, flags_HB = _arranged(run.ranks, hosts, cells_NB, columns.flags_NB, distance_TN, rows, worst)
    title = title_of(signal.partition("/")[0])
    arranged = names, ranks, cells_HB, flags_HB
    return _packed(watched, signal, title, quantity, worst, arranged, columns)


def _of_groups(watched: WatchedRun, column: str, *, first: int | None, last: int | None, num_columns: int) -> Arrays:
    """The cells of all parameter groups: a row each, with the worst rank of each step."""
    names, values_TK, measured_TK = groups_of(watched, column)
    columns = columns_of(watched.run.steps, values_TK, measured_TK, first=first, last=last, num_columns=num_columns)
    worst = worst_end(column)
    arranged = names, [-1] * len(names), _worst(columns, worst), columns.flags_NB
    return _packed(watched, f"groups/{column}", title_of(column), "value", worst, arranged, columns)


def _over_ranks(watched: WatchedRun, column: str, step: int) -> Arrays:
    """The cells of all parameter groups at one step: a row each, a column a rank."""
    names, nearest, values_NK, measured_NK = groups_over_ranks(watched, column, step)
    ranks_N = np.asarray(watched.run.ranks)
    columns = columns_of(ranks_N, values_NK, measured_NK, first=None, last=None, num_columns=MAX_COLUMNS)
    worst = worst_end(column)
    arranged = names, [-1] * len(names), _worst(columns, worst), columns.flags_NB
    packed = _packed(watched, f"groups/{column}", title_of(column), "value", worst, arranged, columns)
    return Arrays(replace(packed.head, over="rank", step=nearest, steps_per_column=1), packed.arrays)


def _packed(
    watched: WatchedRun,
    signal: str,
    title: str,
    quantity: Quantity,
    worst: Literal["low", "high", "far"],
    arranged: tuple[Sequence[str], Sequence[int], np.ndarray, np.ndarray],
    columns: Columns,
) -> Arrays:
    names, ranks, cells_HB, flags_HB = arranged
    finite = cells_HB[np.isfinite(cells_HB)]
    # a single outlier would leave all other cells one colour
    low, high = np.quantile(finite, _CLIPPED).tolist() if finite.size else (None, None)
    first_B, steps = columns.first_B, watched.run.steps
    width = int(np.searchsorted(steps, first_B[1]) - np.searchsorted(steps, first_B[0])) if first_B.size > 1 else 1
    flagged = flagged_of(watched)
    hosts = {watched.run.env[rank].hostname for rank in flagged if rank in watched.run.env}
    head = Heat(
        signal=signal,
        title=title,
        shown=quantity,
        worst=worst,
        rows=tuple(names),
        ranks=tuple(ranks),
        flagged=flagged,
        marked=tuple(
            row
            for row, name_and_rank in enumerate(zip(names, ranks, strict=True))
            if name_and_rank[1] in flagged or name_and_rank[0] in hosts
        ),
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


def drawn_of(
    watched: WatchedRun, signal: str, quantity: Quantity, other_run: WatchedRun | None, *, ordered: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[T, N] what is drawn of a signal, where it was measured, and how far each rank is from the median of all; the
    last is what is drawn where it is neither drawn nor ``ordered`` by. Raises ``InputError``.
    """
    values_TN, measured_TN = values_of(watched, signal)
    if quantity == "relative":
        if other_run is None:
            raise InputError("Relative to which Run? Pass `other`, the number of one that the page shows.")
        values_TN, measured_TN = _relative(watched, other_run, signal)
    distance_TN = distances_from_median(values_TN, measured_TN) if quantity == "apart" or ordered else values_TN
    return (distance_TN if quantity == "apart" else values_TN), measured_TN, distance_TN


def _relative(watched: WatchedRun, other_run: WatchedRun, signal: str) -> tuple[np.ndarray, np.ndarray]:
    """[T, N] (value - other) / |other| at the steps and ranks that both Runs have, and where both measured it."""
    values_TN, measured_TN = values_of(watched, signal)
    other_values_TN, other_measured_TN = values_of(other_run, signal)
    _, run_T, other_T = np.intersect1d(watched.run.steps, other_run.run.steps, return_indices=True)
    _, run_N, other_N = np.intersect1d(watched.run.ranks, other_run.run.ranks, return_indices=True)
    run_cells, other_cells = np.ix_(run_T, run_N), np.ix_(other_T, other_N)
    relative_TN, both_TN = np.full(values_TN.shape, np.nan), np.zeros(values_TN.shape, dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = values_TN[run_cells] - other_values_TN[other_cells]
        # equal zeros are no 0 / 0
        relative_TN[run_cells] = np.where(difference == 0, 0.0, difference / np.abs(other_values_TN[other_cells]))
    both_TN[run_cells] = measured_TN[run_cells] & other_measured_TN[other_cells]
    return relative_TN, both_TN


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
        # stable, so that ranks that are alike stay in the order of their numbers
        order = np.argsort(-farthest(distance_TN), kind="stable").tolist()
        return [names[at] for at in order], [ranks[at] for at in order], cells_NB[order], flags_NB[order]
    machines = list(dict.fromkeys(hosts))
    members = [[at for at, host in enumerate(hosts) if host == machine] for machine in machines]
    combine = {
        "low": lambda cells: np.fmin.reduce(cells),
        "high": lambda cells: np.fmax.reduce(cells),
        "far": lambda cells: _farther(cells),
    }[worst]
    cells_HB = np.stack([combine(cells_NB[indices]) for indices in members])
    flags_HB = np.stack([np.bitwise_or.reduce(flags_NB[indices]) for indices in members])
    only_ranks = [ranks[indices[0]] if len(indices) == 1 else -1 for indices in members]
    return [machine or "unknown machine" for machine in machines], only_ranks, cells_HB, flags_HB


def _farther(cells_NB: np.ndarray) -> np.ndarray:
    low_B, high_B = np.fmin.reduce(cells_NB), np.fmax.reduce(cells_NB)
    return np.where(np.abs(low_B) > np.abs(high_B), low_B, high_B)


def farthest(distance_TN: np.ndarray) -> np.ndarray:
    """[N] how far each rank ever was from the median of all; infinite where it had NaN or infinities, 0 for nothing."""
    finite_TN = np.where(np.isfinite(distance_TN), np.abs(distance_TN), 0.0)
    largest_N = finite_TN.max(axis=0) if len(distance_TN) else np.zeros(distance_TN.shape[1])
    return np.where(np.isinf(distance_TN).any(axis=0), np.inf, largest_N)
