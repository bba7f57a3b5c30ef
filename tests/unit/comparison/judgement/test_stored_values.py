"""Values that are read a stretch at a time are those that NumPy makes of the whole, in memory that does not grow."""

from __future__ import annotations

import tracemalloc
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from trueline.comparison.judgement.values.difference import describe_difference
from trueline.comparison.judgement.values.distance import tensor_distance
from trueline.judge.recorded.stored_tensors import (
    ArrayValue,
    Encoded,
    InOrder,
    Permuted,
    Scaled,
    SideBySide,
    Stored,
    Sum,
    in_groups,
    layouts,
    placed,
    stored,
)
from trueline.schema.errors import RunError
from trueline.store.records.numbers import numbers
from trueline.store.records.tensor_files import TensorValue


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def brain(array: Any) -> TensorValue:
    """Float32 numbers cut off to bfloat16."""
    return TensorValue("BF16", array.shape, (array.view(np.uint32) >> 16).astype(np.uint16))


def assert_reads(value: Stored, whole: Any) -> None:
    """The value is ``whole``, in one piece and in pieces of any length."""
    assert (value.shape, value.size, value.dtype) == (whole.shape, whole.size, whole.dtype)
    assert np.array_equal(np.asarray(value), whole)
    flat = whole.reshape(-1)
    for size in (1, 3, 7, max(whole.size // 2, 1)):
        pieces = [value.read_range(begin, min(begin + size, value.size)) for begin in range(0, value.size, size)]
        assert np.array_equal(np.concatenate(pieces) if pieces else flat, flat), size


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("length", [5, 5000])
def test_parts_side_by_side_are_the_concatenation(dim: int, length: int) -> None:
    shapes = [tuple(each if axis == dim else (3, 2, length)[axis] for axis in range(3)) for each in (2, 0, 1, 4)]
    parts = [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    whole = np.concatenate(parts, axis=dim)
    if whole.size < 1000:
        assert_reads(SideBySide([ArrayValue(part) for part in parts], dim), whole)
    else:
        value = SideBySide([ArrayValue(part) for part in parts], dim)
        assert np.array_equal(np.asarray(value), whole)
        assert np.array_equal(value.read_range(4999, 12345), whole.reshape(-1)[4999:12345])


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit along dim 0"):
        SideBySide([ArrayValue(draw(2, 3)), ArrayValue(draw(2, 4))], 0)


def test_scaled_and_summed_values_are_those_of_numpy() -> None:
    x, y = draw(4, 5), draw(4, 5, seed=1)
    assert_reads(Scaled(ArrayValue(x), 0.25), np.multiply(x, 0.25))
    assert_reads(Scaled(ArrayValue(np.arange(6)), 0.5), np.arange(6) * 0.5)
    assert_reads(Sum([ArrayValue(x), ArrayValue(y)]), x.astype(np.float64) + y)


@pytest.mark.parametrize(("dim", "each"), [(0, 1), (0, 3), (1, 2), (0, 6000), (1, 4000)])
def test_rows_in_order_are_taken_sample_by_sample(dim: int, each: int) -> None:
    order_N = np.array([2, 0, 3, 1])
    array = draw(*(4 * each if axis == dim else 2 for axis in range(2)))
    samples = np.split(array, 4, axis=dim)
    whole = np.concatenate([samples[place] for place in order_N], axis=dim)
    value = InOrder(ArrayValue(array), order_N, dim)
    assert np.array_equal(np.asarray(value), whole)
    assert np.array_equal(value.read_range(3, whole.size - 2), whole.reshape(-1)[3:-2])


@pytest.mark.parametrize("cuts", [((0, 5), (0, 2)), ((0, 3, 4), (0,)), ((0,), (0, 1, 3, 3))])
def test_parts_are_put_where_they_lie_and_copies_once(cuts: Any) -> None:
    whole = draw(7, 4)
    ends = [(*cut[1:], size) for cut, size in zip(cuts, whole.shape, strict=True)]
    blocks = product(*(zip(cut, end, strict=True) for cut, end in zip(cuts, ends, strict=True)))
    parts = [((a, c), ArrayValue(whole[a:b, c:d])) for (a, b), (c, d) in blocks]
    value = placed([*parts, *parts[:2]], whole.shape)
    assert not isinstance(value, ArrayValue) or len(parts) < 2
    assert_reads(value, whole)


def test_parts_that_leave_holes_are_put_where_they_lie_all_the_same() -> None:
    whole = np.zeros((4, 4), np.float32)
    whole[0, :3], whole[2:, 1:] = draw(3), draw(2, 3)
    parts: list[Any] = [((0, 0), ArrayValue(whole[:1, :3])), ((2, 1), ArrayValue(whole[2:, 1:]))]
    assert np.array_equal(np.asarray(placed(parts, (4, 4))), whole)


def test_what_numpy_has_no_type_for_is_read_as_float32() -> None:
    value = brain(draw(5, 3))
    assert isinstance(stored(value), Encoded)
    assert_reads(stored(value), numbers(value))
    assert_reads(stored(TensorValue("U8", (4,), np.arange(4, dtype=np.uint8))), np.arange(4, dtype=np.uint8))
    with pytest.raises(RunError, match="dtype 'F4'"):
        stored(TensorValue("F4", (4,), np.arange(4, dtype=np.uint8)))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 5, 1, 400), (7, 6000)])
def test_dims_in_another_order_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    array = draw(*shape)
    for axes in permutations(range(len(shape))):
        value, whole = Permuted(ArrayValue(array), axes), array.transpose(axes)
        assert value.shape == whole.shape
        assert np.array_equal(np.asarray(value), whole), axes
        assert np.array_equal(value.read_range(5, array.size - 3), whole.reshape(-1)[5:-3]), axes


def test_parts_in_groups_are_what_each_group_has_of_all() -> None:
    """Rows by hand: 2 groups of 3 queries, a key and a value of 2 rows each."""
    q, k, v = draw(12, 3), draw(4, 3, seed=1), draw(4, 3, seed=2)
    whole = np.concatenate([q[:6], k[:2], v[:2], q[6:], k[2:], v[2:]])
    assert_reads(in_groups([ArrayValue(q), ArrayValue(k), ArrayValue(v)], 0, 2), whole)
    assert_reads(in_groups([ArrayValue(part.T.copy()) for part in (q, k, v)], 1, 2), whole.T.copy())


def test_the_layouts_of_a_value_are_those_that_its_shape_allows() -> None:
    array = draw(2, 3, 4, 4)

    def found(*shape: int) -> list[Any]:
        return [np.asarray(layout) for layout in layouts(ArrayValue(array), shape)]

    assert [each.shape for each in found(6, 16)] == [(2, 3, 4, 4)]
    swapped = found(4, 2, 3, 4)
    assert [each.shape for each in swapped] == [(4, 2, 3, 4)] * 2
    assert any(np.array_equal(each, array.transpose(2, 0, 1, 3)) for each in swapped)
    assert found(8, 12) == []


def parts_of(value: TensorValue) -> dict[str, Stored]:
    """Every way to put a value together, of parts that are views of it."""
    height = value.shape[0]
    three = value.shaped((4, height // 4, value.shape[1]))
    cut = [stored(TensorValue("BF16", half.shape, half)) for half in np.split(value.data, 2)]
    wide = [stored(TensorValue("BF16", half.shape, half)) for half in np.split(value.data, 2, axis=1)]
    return {
        "alone": stored(value),
        "side by side": SideBySide(cut, 0),
        "side by side along the last dim": SideBySide(wide, 1),
        "placed": placed([((0, 0), cut[0]), ((height // 2, 0), cut[1])], value.shape),
        "in order": InOrder(stored(value), np.arange(8), 0),
        "scaled": Scaled(stored(value), 1.0),
        "summed": Sum([stored(value)]),
        "permuted": Permuted(Permuted(stored(three), (1, 0, 2)), (1, 0, 2)),
        "in groups": in_groups([stored(value)], 1, 4),
    }


@pytest.fixture(scope="module")
def large() -> TensorValue:
    return brain(draw(2304, 2048))


@pytest.mark.in_turn
@pytest.mark.parametrize("way", list(parts_of(brain(draw(8, 8)))))
def test_what_is_larger_than_the_setting_is_compared_within_it(large: TensorValue, way: str) -> None:
    """9 MiB of bfloat16 a side, 18 MiB as float32, under a setting of 1 MiB."""
    limit = 2**20
    mine, theirs = parts_of(large)[way], parts_of(large)[way]
    tracemalloc.start()
    try:
        distance = tensor_distance(mine, theirs, max_bytes=limit)
        told = describe_difference(mine, theirs, dtype="bfloat16", max_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (distance.equal, told["differ_frac"]) == (True, 0.0)
    assert peak <= limit < large.data.nbytes / 8
