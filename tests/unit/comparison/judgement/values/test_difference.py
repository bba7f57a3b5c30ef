"""What a difference of two arrays looks like and where it is: against NumPy on whole arrays."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from trueline.comparison.judgement.values.difference import describe_difference

RNG = np.random.default_rng(8)
SHAPE = (16, 24, 40)


def pair(shape: tuple[int, ...] = SHAPE, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    ref_values = RNG.normal(size=shape).astype(np.float32)
    return (ref_values * (1 + noise * RNG.normal(size=shape))).astype(np.float32), ref_values


def described(values: np.ndarray, ref_values: np.ndarray, **settings: Any) -> dict[str, Any]:
    return describe_difference(values, ref_values, **{"dtype": "float32", **settings})


@pytest.mark.parametrize("max_bytes", [3_000, 2**28])
def test_numbers_are_those_that_numpy_gives(max_bytes: int) -> None:
    values, ref_values = pair(noise=1e-2)
    values[2:4] = ref_values[2:4]
    description = described(values, ref_values, max_bytes=max_bytes)

    x, y = values.astype(np.float64), ref_values.astype(np.float64)
    at = np.unravel_index(np.abs(x - y).argmax(), SHAPE)
    assert description["max_abs"] == np.abs(x - y).max()
    assert description["max_abs_at"] == list(at)
    assert description["max_abs_values"] == (x[at], y[at])
    assert description["cosine"] == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-12)
    assert description["differ_frac"] == (x != y).mean()
    larger = np.maximum(np.maximum(abs(x), abs(y)), np.exp(np.log(abs(y)).mean()))
    assert description["beyond_frac"] == (abs(x - y) > 2.0**-23 * larger).mean()


def test_ulps_are_numpys_spacing_within_a_bin() -> None:
    values, ref_values = pair(noise=1e-5)
    description = described(values, ref_values)
    larger = np.maximum(np.abs(values), np.abs(ref_values))
    ulps = np.sort((np.abs(values.astype(np.float64) - ref_values) / np.spacing(larger)).ravel())
    for name, fraction in (("ulp_p50", 0.5), ("ulp_p90", 0.9), ("ulp_p99", 0.99), ("ulp_max", 1.0)):
        exact = ulps[int(np.ceil(fraction * ulps.size)) - 1]
        assert exact <= description[name] <= exact * 2 ** (1 / 8)


def test_one_step_is_one_ulp_in_every_dtype() -> None:
    ref_values = np.array([1.0, 1.5, -3.0, 1e-3], dtype=np.float16)
    values = np.nextafter(ref_values, np.float16(np.inf))
    assert described(values, ref_values, dtype="float16")["ulp_max"] == 1.0
    steps = np.array([2.0**-7, 2.0**-7, 0.0], dtype=np.float32)
    description = described(
        np.array([1.0, 1.5, 2.0], dtype=np.float32) + steps, np.array([1.0, 1.5, 2.0]), dtype="bfloat16"
    )
    assert (description["ulp_max"], description["ulp_p50"], description["beyond_frac"]) == (1.0, 1.0, 0.0)


def test_equal_elements_are_no_ulp_apart() -> None:
    values, ref_values = pair(noise=1e-3)
    values[:9] = ref_values[:9]
    description = described(values, ref_values)
    assert description["ulp_p50"] == 0.0
    assert description["ulp_p90"] > 100


def test_a_row_that_is_longer_than_a_block_is_one_place() -> None:
    ref_values = np.ones((6, 5_000), dtype=np.float32)  # all weigh alike, whatever was drawn before
    values = ref_values.copy()
    values[2, :100] += 1
    assert described(values, ref_values, max_bytes=200_000)["where"].startswith(
        "index 2 of 6 along dim 0 and indices 0 to"
    )


def test_whole_numbers_have_no_rounding() -> None:
    description = described(np.array([1, 2, 3]), np.array([1, 2, 5]), dtype="int64")
    assert description["max_abs"] == 2
    assert not [name for name in description if name.startswith(("ulp", "beyond"))]


def test_other_shapes_have_no_description() -> None:
    assert described(np.ones(3), np.ones((3, 1))) == {}


def test_a_difference_all_over_is_nowhere() -> None:
    assert described(*pair(noise=1e-3))["where"] == ""


@pytest.mark.parametrize("max_bytes", [20_000, 2**28])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (np.s_[:, :, 17], "index 17 of 40 along dim 2"),
        (np.s_[:, 5], "index 5 of 24 along dim 1"),
        (np.s_[3:5, :, 8:12], "indices 3, 4 of 16 along dim 0 and indices 8 to 11 of 40 along dim 2"),
        (np.s_[9, 2, 30], "index 9 of 16 along dim 0 and index 2 of 24 along dim 1 and index 30 of 40 along dim 2"),
        (np.s_[[1, 14]], "indices 1, 14 of 16 along dim 0"),
    ],
)
def test_a_place_is_named_by_its_indices(place: Any, words: str, max_bytes: int) -> None:
    values, ref_values = pair(noise=1e-7)
    values[place] += 0.1
    assert described(values, ref_values, max_bytes=max_bytes)["where"] == words


def test_relative_errors_are_not_placed_where_the_large_numbers_are() -> None:
    values, ref_values = pair(noise=1e-3)
    values[:, :, 3], ref_values[:, :, 3] = 1000 * values[:, :, 3], 1000 * ref_values[:, :, 3]
    assert described(values, ref_values)["where"] == ""


def test_an_overwritten_block_is_named_by_its_ends() -> None:
    values, ref_values = pair((60, 1000))
    values.reshape(-1)[4_500:6_548] = 0.5
    assert described(values, ref_values)["where"] == "indices 4 to 6 of 60 along dim 0"
    values, ref_values = pair((60_000,))
    values[4_096:6_144] = 7.0
    assert (
        described(values, ref_values, max_bytes=200_000)["where"]
        == "elements 4,096 to 6,143 of 60,000 in row-major order"
    )


def test_places_of_nan_come_before_those_of_numbers() -> None:
    values, ref_values = pair(noise=1e-2)
    values[:, 7, 1] = np.nan
    ref_values[0, 0, 0] = values[0, 0, 0] = np.inf
    description = described(values, ref_values)
    assert description["nonfinite"] == 16
    assert description["where"] == "index 7 of 24 along dim 1 and index 1 of 40 along dim 2"


def test_complex_numbers_are_described_as_pairs() -> None:
    ref_values = np.ones((4, 10), dtype=np.complex64)
    values = ref_values.copy()
    values[2, 3] += 2j
    description = described(values, ref_values)
    assert (description["max_abs"], description["max_abs_at"]) == (2.0, [2, 3, 1])


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_small_and_empty_arrays_have_a_description(shape: tuple[int, ...]) -> None:
    description = described(np.full(shape, 1.5), np.ones(shape))
    assert description["where"] == ""
    assert description["differ_frac"] == float(bool(np.ones(shape).size))


def test_memory_stays_near_the_setting() -> None:
    values, ref_values = pair((1_000_000,), noise=1e-6)
    limit = 3_000_000
    tracemalloc.start()
    described(values, ref_values, max_bytes=limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < limit
