"""Whole tensors from what ranks recorded of their shards."""

from __future__ import annotations

import json

import pytest

from trueline.schema.stats import MergeError, TensorStats
from trueline.store.records.whole import stats_of, whole_stats


def row(rank, values, *, coordinate, placements, shape=(4,), flags="", numel=True):
    low, high = (min(values), max(values)) if values else (None, None)
    return {
        "name": "w",
        "call": 0,
        "slot": "value",
        "rank": rank,
        "flags": flags,
        "note": "a reason",
        "dtype": "float32",
        "shape": [len(values)],
        "numel": len(values) if numel else None,
        "exponents": None,
        "nan": 0,
        "pos_inf": 0,
        "neg_inf": 0,
        "zero": values.count(0),
        "subnormal": 0,
        "min": low,
        "max": high,
        "sum": float(sum(values)),
        "sum_sq": float(sum(v * v for v in values)),
        "fingerprint": sum(values),
        "mesh": json.dumps({"coordinate": coordinate, "placements": placements, "shape": list(shape)}),
    }


def test_shards_add_up_and_replicas_count_once():
    rows = [
        row(0, [1, 2, 0], coordinate=[0, 0], placements=["R", "S(0)"]),
        row(1, [7], coordinate=[0, 1], placements=["R", "S(0)"]),
        row(2, [1, 2, 0], coordinate=[1, 0], placements=["R", "S(0)"]),
        row(3, [7], coordinate=[1, 1], placements=["R", "S(0)"]),
    ]
    assert whole_stats(rows) == TensorStats(
        "float32", (4,), 4, zero=1, min=0, max=7, sum=10.0, sum_sq=54.0, fingerprint=10
    )


def test_an_empty_shard_changes_nothing():
    rows = [
        row(0, [1, 2], coordinate=[0], placements=["S(0)"], shape=(2,)),
        row(1, [], coordinate=[1], placements=["S(0)"], shape=(2,)),
    ]
    assert whole_stats(rows).sum == 3.0


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row(0, [1, 2], coordinate=[0], placements=["S(0)"])], "2 elements"),
        ([row(0, [1, 2, 3, 4], coordinate=[0], placements=["P(sum)"], flags="pending_sum")], "waits for a sum"),
        (
            [row(n, [1, 2, 3, n], coordinate=[n], placements=["R"]) for n in (0, 1)],
            "Ranks 0 and 1 hold the same part of w#0:value, but not the same values",
        ),
        ([row(0, [1], coordinate=[0], placements=["S(0)"], numel=False)], "was not measured"),
        ([row(0, [1], coordinate=[0], placements=["S(0)"]) | {"mesh": None}], "is no shard"),
    ],
)
def test_what_does_not_make_up_a_whole_is_said(rows, says):
    with pytest.raises(MergeError, match=says):
        whole_stats(rows)


def test_a_row_that_was_not_measured_has_no_statistics():
    assert stats_of(row(0, [1], coordinate=[0], placements=["R"], numel=False)) is None
