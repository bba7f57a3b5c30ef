"""Recorded steps of two runs that differ at all; only those are compared value by value.

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

_STEPS_AT_ONCE = 1_000
"""Steps that are joined at once, which bounds memory: 1.5 million rows of a model of four layers."""

_INTEGER_COLUMNS = ("micro", "call", "same_as", "numel", "nan", "pos_inf", "neg_inf", "zero", "subnormal")
_FLOAT64_COLUMNS = ("min", "max", "sum", "sum_sq")
_COLUMNS = ("step", "row", *_INTEGER_COLUMNS, *_FLOAT64_COLUMNS, *PROJECTION_NAMES, "fingerprint")


def differing_steps(
    run: Run, ref: Run, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> list[tuple[int, int]]:
    """Ascending (step, rank) of which both runs have records that differ; ``steps`` and ``ranks`` choose.

    Rows are joined by step, rank and their order in the step. Steps are equal where they have equal
    numbers of rows and each row has equal micro-batch, call number, statistics and fingerprint, bit for bit. Names do
    not count. A step whose values were recorded in another order differs.
    """
    common = np.intersect1d(run.record_steps, ref.record_steps)
    chosen_steps = [int(step) for step in common if steps is None or step in steps]
    shared = [rank for rank in run.record_ranks if rank in ref.record_ranks and (ranks is None or rank in ranks)]
    differing = [
        (step, rank)
        for stretch in _stretches(chosen_steps)
        for rank in shared
        for step in _differing_steps(_read_table(run, stretch, rank), _read_table(ref, stretch, rank))
    ]
    return sorted(differing)


def _stretches(steps: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(steps), _STEPS_AT_ONCE):
        yield steps[start : start + _STEPS_AT_ONCE]


def _read_table(run: Run, steps: Sequence[int], rank: int) -> Any:
    return cast(Any, run).records(steps=steps, ranks=[rank], columns=_COLUMNS, resolve=False)


def _differing_steps(run_table: Any, ref_table: Any) -> list[int]:
    """Steps of both tables, each sorted by (step, row), that differ."""
    step_R, ref_step_R = _numbers(run_table, "step"), _numbers(ref_table, "step")
    steps, counts = np.unique(step_R, return_counts=True)
    ref_steps, ref_counts = np.unique(ref_step_R, return_counts=True)
    common, run_index, ref_index = np.intersect1d(steps, ref_steps, return_indices=True)
    equal_length = common[counts[run_index] == ref_counts[ref_index]]
    # Rows of steps with unequal numbers of rows cannot be joined: these differ in any case.
    rest = np.setdiff1d(common, equal_length).tolist()
    if len(equal_length) < len(steps) or len(equal_length) < len(ref_steps):
        run_table = run_table.filter(np.isin(step_R, equal_length))
        ref_table = ref_table.filter(np.isin(ref_step_R, equal_length))
        step_R = _numbers(run_table, "step")
    differs_R = np.zeros(len(step_R), dtype=bool)
    for name in _COLUMNS[1:]:
        np.logical_or(differs_R, _numbers(run_table, name) != _numbers(ref_table, name), out=differs_R)
    return [*rest, *np.unique(step_R[differs_R]).tolist()]


def _numbers(table: Any, name: str) -> NDArray[Any]:
    """[R] a column as integers that are equal where its values are, bit for bit; -1 for null.

    The bits of -1 are those of a NaN with a payload that no arithmetic yields.
    """
    column = table[name].combine_chunks()
    if name in _FLOAT64_COLUMNS:
        column = column.view("int64")
    elif name in PROJECTION_NAMES:
        column = column.view("int32")
    return to_numpy(column, -1 if name != "fingerprint" else 2**64 - 1)
