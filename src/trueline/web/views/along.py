"""Where along a step two Runs differ: its values in the order of execution, in as many columns as can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueline.comparison.result import ComparedRow

GRAVITY = ("equal", "within", "not-comparable", "propagated", "beyond")
"""Judgements, the gravest last."""
MAX_TIMES = 1e30
"""Drawn for a difference that is infinite, or not a number."""
_MAX_COLUMNS = 480


@dataclass(frozen=True, slots=True)
class AlongColumn:
    """Neighbouring values of one phase: the gravest judgement among them, and of those that have it the largest
    difference in times of what rounding explains (None: not measured). ``at`` is where among all rows that one is.
    """

    phase: str
    judgement: str
    times: float | None
    at: int
    site: str


@dataclass(frozen=True, slots=True)
class Along:
    """One step of a rank (None: ranks merged), that of the first difference, or of the first value that differs.
    ``first`` is the column of the first difference.
    """

    step: int
    rank: int | None
    num_values: int
    columns: tuple[AlongColumn, ...]
    first: int | None


def along(rows: Sequence[ComparedRow], first_at: int | None) -> Along | None:
    """The step of row ``first_at``, else of the first that differs; None where nothing was compared."""
    if not rows:
        return None
    differing = (at for at, row in enumerate(rows) if row.judgement in ("within", "propagated", "beyond"))
    row_chosen = rows[next(differing, 0) if first_at is None else first_at]
    indices_of_step = [at for at, row in enumerate(rows) if (row.step, row.rank) == (row_chosen.step, row_chosen.rank)]
    by_phase: dict[str, list[int]] = {}
    for at in indices_of_step:
        by_phase.setdefault(_phase(rows[at]), []).append(at)
    columns: list[AlongColumn] = []
    first: int | None = None
    for phase, indices in by_phase.items():
        num_columns = max(1, round(_MAX_COLUMNS * len(indices) / max(len(indices_of_step), _MAX_COLUMNS)))
        for part in np.array_split(np.asarray(indices), num_columns):
            column = _column(phase, rows, part.tolist())
            if first_at is not None and first_at in part:
                first = len(columns)
            columns.append(column)
    return Along(row_chosen.step, row_chosen.rank, len(indices_of_step), tuple(columns), first)


def _column(phase: str, rows: Sequence[ComparedRow], indices: Sequence[int]) -> AlongColumn:
    worst = max(indices, key=lambda at: (GRAVITY.index(rows[at].judgement), rows[at].times or 0.0))
    row = rows[worst]
    times = None if row.times is None else min(row.times, MAX_TIMES)
    return AlongColumn(phase, row.judgement, times, worst, row.site or row.ref_site or "")


def _phase(row: ComparedRow) -> str:
    pieces = (row.site or row.ref_site or "").split("/", 3)
    return pieces[2] if len(pieces) == 4 else "other"
