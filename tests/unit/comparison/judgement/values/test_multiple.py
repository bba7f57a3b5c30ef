"""What is a multiple of its twin, and how rarely noise looks like one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.comparison.judgement.values.test_distance import measured

from trueline.comparison.judgement.values.multiple import chance_of_all, multiple_of
from trueline.schema.stats import TensorStats

NUM = 4000


def stats(numbers: Any) -> TensorStats:
    return measured(torch.as_tensor(numbers, dtype=torch.float32))


def noise(seed: int, num: int = NUM) -> Any:
    return np.random.default_rng(seed).standard_normal(num)


@pytest.mark.parametrize("factor", [2.83, 0.5, 1.1, -1.0, 0.0])
def test_a_multiple_is_told_with_rounding_of_its_own(factor: float) -> None:
    y = noise(0)
    multiple = multiple_of(stats(factor * y * (1 + 0.001 * noise(1))), stats(y))
    assert multiple is not None
    assert multiple.factor == pytest.approx(factor, abs=1e-3)
    assert multiple.chance < 1e-4


def test_what_is_far_smaller_and_points_elsewhere_is_none() -> None:
    """What float64 leaves of a gradient that is 0, beside what float32 does."""
    multiple = multiple_of(stats(1e-9 * noise(1)), stats(noise(0)))
    assert multiple is not None
    assert multiple.chance > 0.01


def test_what_one_shared_rounding_makes_is_none() -> None:
    assert multiple_of(stats(1.03 * noise(0)), stats(noise(0))) is None


def test_few_numbers_are_none() -> None:
    assert multiple_of(stats(2 * noise(0, 7)), stats(noise(0, 7))) is None


def test_chances_of_noise_are_as_stated() -> None:
    """Of 2,000 pairs that differ by noise as large as the reference, a share p has a chance up to p."""
    chances = [
        1.0 if multiple is None else multiple.chance
        for seed in range(2000)
        if (y := noise(seed, 64)) is not None
        for multiple in [multiple_of(stats(y + noise(seed + 5000, 64)), stats(y))]
    ]
    for share in (0.5, 0.1, 0.01):
        assert sum(chance <= share for chance in chances) <= 2000 * share + 4 * (2000 * share) ** 0.5


def test_several_are_rarer_than_one_and_none_is_no_evidence() -> None:
    assert chance_of_all([]) == 1.0
    assert chance_of_all([1e-3]) == 1e-3
    assert chance_of_all([1e-3, 1e-3, 1e-3]) == pytest.approx(3e-9)
    assert chance_of_all([1e-3, *[0.5] * 99]) > 0.05
