"""The order of samples in a batch that several ranks shared: a DistributedSampler deals them out in turn, so that the
concatenated batches of all ranks are in another order than the batch of one rank.

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
"""Of an input that is read to find the order of its rows."""


def reordered(
    mine: StepValues, theirs: StepValues, twins: Sequence[tuple[int, int]], dims: Mapping[int, int]
) -> StepValues:
    """``mine`` with stored values in the row order of ``theirs``, which the first input of the model shows; unchanged
    where rows are not the same, or not distinct. ``dims`` has the dim of the batch for each value that was put together
    from shares of it.
    """
    order_N = next(
        (_order(mine.values[i], theirs.values[j], dims[i]) for i, j in twins if _shows_order(mine, i, dims)), None
    )
    if order_N is None or np.array_equal(order_N, np.arange(len(order_N))):
        return mine
    values = list(mine.values)
    for index, dim in dims.items():
        load = values[index].load
        if load is not None and values[index].shape[dim] % len(order_N) == 0:
            values[index] = replace(values[index], load=_in_order(load, order_N, dim))
    return replace(mine, values=values)


def _shows_order(mine: StepValues, index: int, dims: Mapping[int, int]) -> bool:
    value = mine.values[index]
    return index in dims and value.site.phase == "fwd" and not value.returned and value.load is not None


def _order(mine: Value, theirs: Value, dim: int) -> NDArray[np.int64] | None:
    """[N] for each row of ``theirs`` its index in ``mine``; None where that is not known."""
    if mine.load is None or theirs.load is None or mine.shape != theirs.shape or not mine.shape[dim]:
        return None
    if mine.stats is None or mine.stats.numel * 8 > _MAX_BYTES:
        return None
    rows, others = (_rows(np.asarray(load()), dim) for load in (mine.load, theirs.load))
    place = {row: index for index, row in enumerate(rows)}
    if len(place) < len(rows) or set(others) != set(place):
        return None
    return np.array([place[row] for row in others], dtype=np.int64)


def _rows(array: NDArray[np.generic], dim: int) -> list[bytes]:
    return [row.tobytes() for row in np.moveaxis(array, dim, 0)]


def _in_order(load: Loader, order_N: NDArray[np.int64], dim: int) -> Loader:
    return lambda: InOrder(load(), order_N, dim)
