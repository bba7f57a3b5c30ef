"""Columns as lists: what Arrow's own conversion gives, but that lists are tuples."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from trueline.store.log.column_lists import column_lists

COLUMNS = {
    "step": pa.array([3, 3, 3, 3], pa.int64()),
    "stack": pa.array([None, 2, None, 0], pa.int32()),
    "fingerprint": pa.array([2**64 - 1, None, 0, 1], pa.uint64()),
    "sum": pa.array([0.5, math.inf, None, -0.0], pa.float64()),
    "name": pa.array(["a.b", None, "", "a.b"], pa.string()),
    "shape": pa.array([[2, 3], [], None, [2, 3]], pa.list_(pa.int64())),
    "exponents": pa.array([None, None, None, None], pa.list_(pa.int64())),
    "note": pa.array([None, None, None, None], pa.string()),
}


def truth(table: pa.Table) -> dict[str, list[object]]:
    return {
        name: [tuple(value) if isinstance(value, list) else value for value in values]
        for name, values in table.to_pydict().items()
    }


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_values_that_arrow_gives(name: str) -> None:
    table = pa.table({name: COLUMNS[name]})
    for part in (table, table.slice(1, 2), table.slice(0, 0), pa.concat_tables([table.slice(2), table])):
        assert column_lists(part) == truth(part)
        assert [type(value) for value in column_lists(part)[name]] == [type(value) for value in truth(part)[name]]


def test_a_number_that_is_not_one_stays_so() -> None:
    (value,) = column_lists(pa.table({"min": pa.array([math.nan])}))["min"]
    assert math.isnan(value)


def test_equal_texts_and_equal_lists_are_one_object() -> None:
    lists = column_lists(pa.table({name: COLUMNS[name] for name in ("name", "shape")}))
    assert lists["name"][0] is lists["name"][3]
    assert lists["shape"][0] is lists["shape"][3]
