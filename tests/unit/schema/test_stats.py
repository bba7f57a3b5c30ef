"""Statistics of shards add up to those of the whole; what is derived from them follows from the numbers themselves."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueline.schema.stats import NUM_EXPONENTS, MergeError, TensorStats, merged

TINY = float(np.finfo(np.float32).tiny)
NUMBERS = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1.0, 3.5])
)
LISTS = st.lists(NUMBERS, max_size=12)


def counted(numbers, *, shape=None, fingerprint=None):
    """The slow truth, one number at a time."""
    finite = [x for x in numbers if math.isfinite(x)]
    exponents = [0] * NUM_EXPONENTS
    for x in finite:
        if x != 0:
            exponents[min(max(math.frexp(x)[1] - 1 + 127, 0), 255)] += 1
    return TensorStats(
        dtype="float32",
        shape=shape if shape is not None else (len(numbers),),
        numel=len(numbers),
        nan=sum(math.isnan(x) for x in numbers),
        pos_inf=numbers.count(math.inf),
        neg_inf=numbers.count(-math.inf),
        zero=sum(x == 0 for x in numbers),
        subnormal=sum(0 < abs(x) < TINY for x in numbers),
        min=min(finite, default=None),
        max=max(finite, default=None),
        sum=math.fsum(finite),
        sum_sq=math.fsum(x * x for x in finite),
        fingerprint=fingerprint,
        exponents=tuple(exponents),
    )


def exact(stats):
    sums = ("sum", "sum_sq", "shape")
    return {name: value for name, value in asdict(stats).items() if name not in sums}


def close(a, b):
    """Same exact fields; sums within the float64 rounding of a few additions of numbers of this size."""
    room = 1e-14 * max(a.sum_sq, b.sum_sq, math.sqrt(max(a.sum_sq, b.sum_sq) * max(a.numel, 1)))
    return exact(a) == exact(b) and abs(a.sum - b.sum) <= room and abs(a.sum_sq - b.sum_sq) <= room


@settings(max_examples=60, deadline=None)
@given(LISTS, LISTS, LISTS)
def test_shards_in_any_order_and_grouping_equal_the_whole(a, b, c):
    whole = counted(a + b + c)
    one, two, three = counted(a), counted(b), counted(c)
    assert close((one + two) + three, whole)
    assert close(one + (two + three), whole)
    assert two + one == one + two


@settings(max_examples=30, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=12))
def test_an_empty_shard_changes_nothing(a):
    one = counted(a, shape=(2, 3), fingerprint=7)
    for empty in (counted([], fingerprint=0), TensorStats("float32", (0, 3), 0)):
        assert one + empty == empty + one == one


def test_fingerprints_add_mod_two_to_the_64_and_stay_unmeasured_if_one_is():
    high = counted([1.0], fingerprint=2**64 - 1)
    assert (high + counted([1.0], fingerprint=3)).fingerprint == 2
    assert (high + counted([1.0])).fingerprint is None
    assert (high + TensorStats("float32", (1,), 1)).exponents is None


def test_two_shards_have_no_shape_until_they_are_said_to_be_the_whole():
    one, two = counted([1.0, 2.0], shape=(1, 2)), counted([3.0], shape=(1, 1))
    assert (one + two).shape is None
    assert merged([one, two], shape=(1, 3)).shape == (1, 3)
    assert merged([one, two], shape=(1, 3)).max == 3.0


def test_shards_of_different_dtypes_are_refused_by_name():
    with pytest.raises(MergeError, match="Shards of float32 and bfloat16 cannot be merged"):
        counted([1.0]) + TensorStats("bfloat16", (1,), 1)


def test_missing_shards_and_replicas_are_refused_with_both_counts():
    with pytest.raises(MergeError, match=r"2 shards have 2 elements, a tensor of shape \[3\] has 3"):
        merged([counted([1.0]), counted([2.0])], shape=(3,))
    with pytest.raises(MergeError, match="No shard was given"):
        merged([], shape=(3,))


def test_complex_shards_have_two_numbers_an_element():
    part = TensorStats("complex64", (2,), 4)
    assert merged([part, part], shape=(4,)).numel == 8


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_derived_numbers_are_those_of_numpy(numbers):
    stats, x = counted([*numbers, math.nan, math.inf]), np.array(numbers)
    size = np.abs(x).max()
    assert stats.finite == len(numbers)
    assert stats.mean == pytest.approx(x.mean(), rel=1e-12, abs=1e-12 * size)
    assert stats.rms == pytest.approx(np.sqrt((x**2).mean()), rel=1e-12)
    assert stats.norm == pytest.approx(np.linalg.norm(x), rel=1e-12)
    assert stats.std == pytest.approx(x.std(), rel=1e-6, abs=1e-7 * size)  # a difference of sums: half of the digits


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_lies_within_its_bounds(numbers, fraction):
    low, high = counted([*numbers, math.inf]).quantile(fraction)
    sizes = sorted(abs(x) for x in numbers)
    value = sizes[max(math.ceil(fraction * len(sizes)), 1) - 1]
    assert low <= value < high or value == low == high == 0.0


def test_nothing_finite_has_no_mean_and_no_quantile():
    stats = counted([math.nan, math.inf])
    assert (stats.mean, stats.rms, stats.std, stats.quantile(0.5), stats.min) == (None,) * 5
    with pytest.raises(ValueError, match=r"quantile of 1.5"):
        stats.quantile(1.5)


def test_a_measured_row_becomes_stats_with_none_for_missing_extremes():
    row = np.array([1, 2, 3, 0, 0, math.nan, math.nan, 0.0, 0.0])
    stats = TensorStats.from_row(
        row, dtype="float32", shape=(6,), numel=6, fingerprint=-1, exponents=np.zeros(256, int)
    )
    assert (stats.nan, stats.pos_inf, stats.neg_inf, stats.min, stats.max) == (1, 2, 3, None, None)
    assert stats.fingerprint == 2**64 - 1
    assert stats.exponents == (0,) * 256
