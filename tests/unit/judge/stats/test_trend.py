"""A fall is seen as often as chance brings one, where the order of values is chance."""

from itertools import permutations

import numpy as np
import pytest

from trueline.judge.stats.trend import MOST_VALUES, _chance_of_pairs, chance_of_fall


def test_the_chance_is_the_share_of_all_orders_that_fall_as_much():
    num_falling = {
        order: sum(a > b for i, a in enumerate(order) for b in order[i + 1 :]) for order in permutations(range(5))
    }
    for order, number in num_falling.items():
        share = sum(other >= number for other in num_falling.values()) / len(num_falling)
        assert _chance_of_pairs(np.array(order, dtype=float)) == pytest.approx(share, rel=1e-12)


def test_equal_values_are_no_fall():
    assert chance_of_fall(np.ones(20)) == 1.0
    assert chance_of_fall(np.array([3.0, 3.0, 2.0, 2.0])) >= chance_of_fall(np.array([3.5, 3.0, 2.5, 2.0]))


@pytest.mark.parametrize("num", [9, MOST_VALUES * 7 + 3])
def test_chance_alone_is_below_a_level_at_most_that_often(num):
    draw = np.random.default_rng(3)
    level, trials = 0.05, 200
    below = sum(chance_of_fall(draw.standard_cauchy(num)) <= level for _ in range(trials))
    # Binomial with p <= 0.05: more than 22 of 200 in one of 4,000 draws.
    assert below <= 22


def test_a_fall_that_is_soon_over_is_seen():
    draw = np.random.default_rng(5)
    series = np.where(np.arange(1000) < 50, 3.0, 2.0) + 0.3 * draw.normal(size=1000)
    assert chance_of_fall(series) <= 0.001
    assert chance_of_fall(series[50:]) > 0.01


def test_a_fall_that_the_noise_hides_from_single_steps_is_seen_over_many():
    draw = np.random.default_rng(4)
    assert chance_of_fall(np.linspace(1, 0, 2000) + 3 * draw.normal(size=2000)) < 1e-3
