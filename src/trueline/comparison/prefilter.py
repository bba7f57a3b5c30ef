"""Which recorded steps of two runs differ at all, so that only those are compared value by value.

R rows of a stretch of steps on one rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.schema.columns.records import PROJECTION_NAMES
from trueline.store.reader import Run
from trueline.store.records.arrays import to_numpy

_AT_A_TIME = 1_000
"""Steps that are joined at a time, which bounds memory: 1.5 million rows of a model of four layers."""

_WHOLE = ("micro", "call", "same_as", "numel", "nan", "pos_inf", "neg_inf", "zero", "subnormal")
_REAL = ("min", "max", "sum", "sum_sq")
_COLUMNS = ("step", "row", *_WHOLE, *_REAL, *PROJECTION_NAMES, "fingerprint")


def differing_steps(
    run: Run, ref: Run, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> list[tuple[int, int]]:
    """(step, rank) of which both runs have records that are not the same, ascending; ``steps`` and ``ranks`` choose.

    Rows are joined by step, rank and their order in the step. Steps are the same where they have the same number of
    rows and each row has the same micro-batch, call number, statistics and fingerprint, bit for bit. Names do not
    count. A step whose values were recorded in another order is not the same.
    """
    common = np.intersect1d(run.record_steps, ref.record_steps)
    wanted = [int(step) for step in common if steps is None or step in steps]
    shared = [rank for rank in run.record_ranks if rank in ref.record_ranks and (ranks is None or rank in ranks)]
    found = [
        (step, rank)
        for stretch in _stretches(wanted)
        for rank in shared
        for step in _differing(_read(run, stretch, rank), _read(ref, stretch, rank))
    ]
    return sorted(found)


def _stretches(steps: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(steps), _AT_A_TIME):
        yield steps[start : start + _AT_A_TIME]


def _read(run: Run, steps: Sequence[int], rank: int) -> Any:
    return cast(Any, run).records(steps=steps, ranks=[rank], columns=_COLUMNS, resolve=False)


def _differing(mine: Any, theirs: Any) -> list[int]:
    """Steps of both tables, sorted by (step, row), that are not the same."""
    step_R, other_R = _numbers(mine, "step"), _numbers(theirs, "step")
    steps, counts = np.unique(step_R, return_counts=True)
    others, other_counts = np.unique(other_R, return_counts=True)
    both, at, other_at = np.intersect1d(steps, others, return_indices=True)
    same = both[counts[at] == other_counts[other_at]]
    rest = np.setdiff1d(both, same).tolist()
    if len(same) < len(steps) or len(same) < len(others):
        mine = mine.filter(np.isin(step_R, same))
        theirs = theirs.filter(np.isin(other_R, same))
        step_R = _numbers(mine, "step")
    differs_R = np.zeros(len(step_R), dtype=bool)
    for name in _COLUMNS[1:]:
        np.logical_or(differs_R, _numbers(mine, name) != _numbers(theirs, name), out=differs_R)
    return [*rest, *np.unique(step_R[differs_R]).tolist()]


def _numbers(table: Any, name: str) -> NDArray[Any]:
    """[R] a column as integers that are equal where its values are, bit for bit; -1 for null.

    The bits of -1 are those of a NaN with a payload that no arithmetic yields.
    """
    column = table[name].combine_chunks()
    if name in _REAL:
        column = column.view("int64")
    elif name in PROJECTION_NAMES:
        column = column.view("int32")
    return to_numpy(column, -1 if name != "fingerprint" else 2**64 - 1)
