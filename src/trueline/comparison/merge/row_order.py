"""Order of samples in a batch that several ranks shared.

A DistributedSampler deals samples out in turn, so the concatenated batches of all ranks are in another order than the
batch of one rank.

N rows of a value along the dim that its batch lies along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trueline.judge.recorded.step_values import Loader, StepValues, Value
from trueline.judge.recorded.stored_tensors import InOrder

_MAX_BYTES = 256 * 2**20
"""Largest input that is read to find the order of its rows."""


def with_row_order(
    step: StepValues, target: StepValues, twins: Sequence[tuple[int, int]], dims: Mapping[int, int]
) -> StepValues:
    """Bring stored values of ``step`` into the row order of ``target``, as the first input of the model shows it.

    Returns ``step`` unchanged where rows differ between the two, or repeat. ``dims`` has the dim of the batch for each
    value that was put together from shares of it.
    """
    order_N = next(
        (_row_order(step.values[i], target.values[j], dims[i]) for i, j in twins if _shows_order(step, i, dims)), None
    )
    if order_N is None or np.array_equal(order_N, np.arange(len(order_N))):
        return step
    values = list(step.values)
    for index, dim in dims.items():
        load = values[index].load
        if load is not None and values[index].shape[dim] % len(order_N) == 0:
            values[index] = replace(values[index], load=_load_in_order(load, order_N, dim))
    return replace(step, values=values)


def _shows_order(step: StepValues, index: int, dims: Mapping[int, int]) -> bool:
    value = step.values[index]
    return index in dims and value.site.phase == "fwd" and not value.returned and value.load is not None


def _row_order(value: Value, target: Value, dim: int) -> NDArray[np.int64] | None:
    """Index [N] in ``value`` of each row of ``target``; None where unknown."""
    if value.load is None or target.load is None or value.shape != target.shape or not value.shape[dim]:
        return None
    if value.stats is None or value.stats.numel * 8 > _MAX_BYTES:
        return None
    rows, target_rows = (_rows(np.asarray(load()), dim) for load in (value.load, target.load))
    index_by_row = {row: index for index, row in enumerate(rows)}
    # Equal rows, as of padding, could be exchanged without a trace.
    if len(index_by_row) < len(rows) or set(target_rows) != set(index_by_row):
        return None
    return np.array([index_by_row[row] for row in target_rows], dtype=np.int64)


def _rows(array: NDArray[np.generic], dim: int) -> list[bytes]:
    return [row.tobytes() for row in np.moveaxis(array, dim, 0)]


def _load_in_order(load: Loader, order_N: NDArray[np.int64], dim: int) -> Loader:
    return lambda: InOrder(load(), order_N, dim)
