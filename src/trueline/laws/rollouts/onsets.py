"""From which token on the two sides of a response differ, where they agree before it.

R sequences, L tokens of one.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.rows import Rows
from trueline.laws.rollouts.tokens import tokens_of
from trueline.store.reader import Run

BEFORE = 3
"""Fewest tokens that agree first, and that differ then."""
RATIO = 10.0
LEAST = 0.05
"""Usual |d| behind the position: more than rounding leaves."""


def onset_of(run: Run, rows: Rows) -> NDArray[np.int64]:
    """[R] the first token that differs of each of ``rows``; -1 where there is no such place."""
    at = {
        key: index
        for index, key in enumerate(zip(rows.step.tolist(), rows.rank.tolist(), rows.row.tolist(), strict=True))
    }
    onset_R = np.full(len(rows), -1, dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        suspect_R = rows.sums["abs"] / rows.sums["tokens"] > LEAST / 4
    if not suspect_R.any():
        return onset_R
    for table in cast(Any, run.kept("rollouts")).pieces():
        tokens = tokens_of(table)
        d, counts = np.abs(tokens.diff()), tokens.counts
        ends = np.cumsum(tokens.length)
        columns = (cast(list[int], table[name].to_pylist()) for name in ("step", "rank", "row"))
        keys = zip(*columns, strict=True)
        for key, begin, end in zip(keys, ends - tokens.length, ends, strict=True):
            index = at.get(key, -1)
            if index >= 0 and suspect_R[index]:
                onset_R[index] = _onset(d[begin:end], counts[begin:end])
    return onset_R


def _onset(d_L: NDArray[np.float64], counts_L: NDArray[np.bool_]) -> int:
    """The first token before which all |d| are a tenth at most of what is usual behind it."""
    positions = np.flatnonzero(counts_L)
    d = d_L[positions]
    if len(d) < 2 * BEFORE:
        return -1
    highest = np.maximum.accumulate(d)
    jumps = np.flatnonzero(d[BEFORE : len(d) - BEFORE + 1] > RATIO * highest[BEFORE - 1 : len(d) - BEFORE]) + BEFORE
    for k in jumps.tolist():
        usual = float(np.median(d[k:]))
        if usual > LEAST and highest[k - 1] * RATIO < usual:
            return int(positions[k])
    return -1
