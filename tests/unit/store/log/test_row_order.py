"""Rows of ranks that have the same steps in a row are in the order that sorting their keys gives, without it."""

import numpy as np
import pyarrow as pa
import pytest
from tests.synthetic_runs import write_part, write_run

from trueline.store.reader import Run
from trueline.store.rows import GridOrder, MergeOrder, StepsInARow


@pytest.mark.parametrize(("ranks", "first", "num"), [((0, 1, 2), 0, 4), ((3,), 7, 2), ((1, 5), 3, 1)])
def test_a_grid_is_the_order_that_sorting_gives(ranks, first, num):
    grid = GridOrder(np.array(ranks, np.int32), first, num)
    keys = [StepsInARow(rank, first, num).table() for rank in ranks]
    step_T, rank_T = (pa.concat_tables(keys)[name].to_numpy() for name in ("step", "rank"))
    order = MergeOrder(step_T, rank_T)
    assert (len(grid), grid.last_of()) == (len(order), order.last_of())
    assert grid.distinct_steps().tolist() == order.distinct_steps().tolist()
    for step in range(first - 1, first + num + 2):
        assert grid.from_step(step) == order.from_step(step)
        assert grid.counts(step) == order.counts(step)
    values = pa.chunked_array([pa.array(range(len(step_T)))])
    assert grid.merge(values).to_pylist() == order.merge(values).to_pylist()
    assert (grid.steps.tolist(), grid.ranks.tolist()) == (order.steps.tolist(), order.ranks.tolist())
    assert (grid.steps.dtype, grid.ranks.dtype) == (order.steps.dtype, order.ranks.dtype)


@pytest.mark.parametrize(
    ("steps", "ranks", "found"),
    [
        ([4, 5, 6], [1, 1, 1], StepsInARow(1, 4, 3)),
        ([4, 6, 5], [1, 1, 1], None),
        ([4, 5, 7], [1, 1, 1], None),
        ([4, 4, 6], [1, 1, 1], None),
        ([4, 5, 6], [1, 2, 1], None),
        ([4, 5, 6], [None, 1, 1], None),
        ([], [], None),
    ],
)
def test_steps_in_a_row_are_known_as_such(steps, ranks, found):
    rows = pa.table({"step": pa.array(steps, pa.int64()), "rank": pa.array(ranks, pa.int32())})
    assert StepsInARow.from_rows(rows) == found
    if found is not None:
        assert found.table().equals(rows)


def kind(run):
    return type(run._rows)


def test_a_run_is_a_grid_as_long_as_all_ranks_have_the_same_steps_once(tmp_path):
    path = write_run(tmp_path / "run", num_ranks=3, num_steps=12, rows_a_part=5)
    run = Run(path)
    assert kind(run) is kind(run.before(7)) is kind(run.between(3, 9)) is GridOrder
    assert run.between(3, 9).table().equals(run.table().slice(9, 18))
    write_part(path, 1, [{"step": 12, "loss": 1.0}], sequence=3)
    assert kind(Run(path)) is MergeOrder, "one rank is a step ahead"
    assert kind(Run(path).before(12)) is GridOrder
    write_part(path, 1, [{"step": 3, "loss": 7.0}], sequence=4)
    again = Run(path)
    assert kind(again.before(12)) is MergeOrder, "a row came twice"
    assert again.pivot("loss")[0][3, 1] == 7.0
