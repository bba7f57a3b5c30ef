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
    theirs = RNG.normal(size=shape).astype(np.float32)
    return (theirs * (1 + noise * RNG.normal(size=shape))).astype(np.float32), theirs


def described(mine: np.ndarray, theirs: np.ndarray, **settings: Any) -> dict[str, Any]:
    return describe_difference(mine, theirs, **{"dtype": "float32", **settings})


@pytest.mark.parametrize("max_bytes", [3_000, 2**28])
def test_numbers_are_those_that_numpy_gives(max_bytes: int) -> None:
    mine, theirs = pair(noise=1e-2)
    mine[2:4] = theirs[2:4]
    found = described(mine, theirs, max_bytes=max_bytes)

    x, y = mine.astype(np.float64), theirs.astype(np.float64)
    at = np.unravel_index(np.abs(x - y).argmax(), SHAPE)
    assert found["max_abs"] == np.abs(x - y).max()
    assert found["max_abs_at"] == list(at)
    assert found["max_abs_values"] == (x[at], y[at])
    assert found["cosine"] == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-12)
    assert found["differ_frac"] == (x != y).mean()
    larger = np.maximum(np.maximum(abs(x), abs(y)), np.exp(np.log(abs(y)).mean()))
    assert found["beyond_frac"] == (abs(x - y) > 2.0**-23 * larger).mean()


def test_ulps_are_numpys_spacing_within_a_bin() -> None:
    mine, theirs = pair(noise=1e-5)
    found = described(mine, theirs)
    larger = np.maximum(np.abs(mine), np.abs(theirs))
    ulps = np.sort((np.abs(mine.astype(np.float64) - theirs) / np.spacing(larger)).ravel())
    for name, fraction in (("ulp_p50", 0.5), ("ulp_p90", 0.9), ("ulp_p99", 0.99), ("ulp_max", 1.0)):
        exact = ulps[int(np.ceil(fraction * ulps.size)) - 1]
        assert exact <= found[name] <= exact * 2 ** (1 / 8)


def test_one_step_is_one_ulp_in_every_dtype() -> None:
    theirs = np.array([1.0, 1.5, -3.0, 1e-3], dtype=np.float16)
    mine = np.nextafter(theirs, np.float16(np.inf))
    assert described(mine, theirs, dtype="float16")["ulp_max"] == 1.0
    steps = np.array([2.0**-7, 2.0**-7, 0.0], dtype=np.float32)
    found = described(np.array([1.0, 1.5, 2.0], dtype=np.float32) + steps, np.array([1.0, 1.5, 2.0]), dtype="bfloat16")
    assert (found["ulp_max"], found["ulp_p50"], found["beyond_frac"]) == (1.0, 1.0, 0.0)


def test_equal_elements_are_no_ulp_apart() -> None:
    mine, theirs = pair(noise=1e-3)
    mine[:9] = theirs[:9]
    found = described(mine, theirs)
    assert found["ulp_p50"] == 0.0
    assert found["ulp_p90"] > 100


def test_a_row_that_is_longer_than_a_block_is_one_place() -> None:
    theirs = np.ones((6, 5_000), dtype=np.float32)  # all weigh alike, whatever was drawn before
    mine = theirs.copy()
    mine[2, :100] += 1
    assert described(mine, theirs, max_bytes=200_000)["where"].startswith("index 2 of 6 along dim 0 and indices 0 to")


def test_whole_numbers_have_no_rounding() -> None:
    found = described(np.array([1, 2, 3]), np.array([1, 2, 5]), dtype="int64")
    assert found["max_abs"] == 2
    assert not [name for name in found if name.startswith(("ulp", "beyond"))]


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
    mine, theirs = pair(noise=1e-7)
    mine[place] += 0.1
    assert described(mine, theirs, max_bytes=max_bytes)["where"] == words


def test_relative_errors_are_not_placed_where_the_large_numbers_are() -> None:
    mine, theirs = pair(noise=1e-3)
    mine[:, :, 3], theirs[:, :, 3] = 1000 * mine[:, :, 3], 1000 * theirs[:, :, 3]
    assert described(mine, theirs)["where"] == ""


def test_an_overwritten_block_is_named_by_its_ends() -> None:
    mine, theirs = pair((60, 1000))
    mine.reshape(-1)[4_500:6_548] = 0.5
    assert described(mine, theirs)["where"] == "indices 4 to 6 of 60 along dim 0"
    mine, theirs = pair((60_000,))
    mine[4_096:6_144] = 7.0
    assert described(mine, theirs, max_bytes=200_000)["where"] == "elements 4,096 to 6,143 of 60,000 in row-major order"


def test_places_of_nan_come_before_those_of_numbers() -> None:
    mine, theirs = pair(noise=1e-2)
    mine[:, 7, 1] = np.nan
    theirs[0, 0, 0] = mine[0, 0, 0] = np.inf
    found = described(mine, theirs)
    assert found["nonfinite"] == 16
    assert found["where"] == "index 7 of 24 along dim 1 and index 1 of 40 along dim 2"


def test_complex_numbers_are_described_as_pairs() -> None:
    theirs = np.ones((4, 10), dtype=np.complex64)
    mine = theirs.copy()
    mine[2, 3] += 2j
    found = described(mine, theirs)
    assert (found["max_abs"], found["max_abs_at"]) == (2.0, [2, 3, 1])


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_small_and_empty_arrays_have_a_description(shape: tuple[int, ...]) -> None:
    found = described(np.full(shape, 1.5), np.ones(shape))
    assert found["where"] == ""
    assert found["differ_frac"] == float(bool(np.ones(shape).size))


def test_memory_stays_near_the_setting() -> None:
    mine, theirs = pair((1_000_000,), noise=1e-6)
    limit = 3_000_000
    tracemalloc.start()
    described(mine, theirs, max_bytes=limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < limit
