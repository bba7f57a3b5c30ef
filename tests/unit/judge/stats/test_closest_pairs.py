"""The bets on pairs of workers that stay close: exact expectations, false alarms, delays, who is not meant."""

import numpy as np
import pytest

from trueline.judge.stats.alarms import alarm_of
from trueline.judge.stats.closest_pairs import closeness, distances, heights, log_e_of_pairs, log_e_values, pairs_of
from trueline.judge.stats.exchangeability import log_detector, log_threshold


def _rng() -> np.random.Generator:
    return np.random.default_rng(6)


def _threshold(num_workers):
    return log_threshold(false_alarms=1.0, weight=1 / 12 / len(pairs_of(num_workers)))


@pytest.mark.parametrize("workers", [3, 4, 7])
def test_the_e_values_of_one_step_average_to_one_over_the_pairs(workers):
    values = _rng().standard_cauchy((50, workers, 2))
    e = np.exp(log_e_values(distances(values)))
    np.testing.assert_allclose(e.mean(axis=1), 1.0, rtol=1e-9)


def test_one_pair_alone_is_not_judged():
    np.testing.assert_array_equal(log_e_values(distances(_rng().normal(size=(9, 2, 1)))), 0.0)


def test_an_unmeasured_worker_takes_its_pairs_out():
    values = _rng().normal(size=(30, 4, 1))
    values[:, 2] = np.nan
    e = np.exp(log_e_values(distances(values)))
    without = [p for p, pair in enumerate(pairs_of(4)) if 2 not in pair]
    np.testing.assert_array_equal(e[:, [p for p in range(6) if p not in without]], 1.0)
    np.testing.assert_allclose(e[:, without].mean(axis=1), 1.0, rtol=1e-9)


def test_a_column_that_no_worker_has_does_not_count():
    values = _rng().normal(size=(30, 4, 2))
    alone = distances(values[:, :, :1])
    values[:, :, 1] = np.nan
    np.testing.assert_allclose(distances(values), alone)


def test_a_column_is_measured_in_its_median_difference_or_mean_where_most_are_equal():
    values = np.array([[[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [8.0, 9.0]]])
    spread, ties = np.array([1, 3, 7, 2, 6, 4]) / 3, np.array([0, 0, 9, 0, 9, 9]) / 4.5
    np.testing.assert_allclose(distances(values)[0], np.sqrt((spread**2 + ties**2) / 2))


def test_equal_workers_leave_no_evidence():
    np.testing.assert_array_equal(log_e_values(distances(np.ones((5, 4, 2)))), 0.0)


def test_heights_are_those_of_the_detectors():
    values = _rng().standard_t(3, size=(300, 4, 2))
    slow = log_detector(log_e_values(distances(values))).max(axis=0)
    np.testing.assert_allclose(heights(values), slow, rtol=1e-9)
    np.testing.assert_allclose(log_detector(log_e_of_pairs(values, [4])[:, 0]).max(), slow[4], rtol=1e-9)


def test_healthy_heavy_tails_keep_the_stated_rate():
    """Promise: one alarm per 10,000 steps; 100,000 steps in runs of 500. A Poisson count of mean 10 exceeds 24 with
    probability 5e-5.
    """
    rng = _rng()
    threshold = log_threshold(false_alarms=1.0, weight=1 / 6)
    alarms = sum(int(np.any(heights(rng.standard_t(3, size=(500, 4, 1))) >= threshold)) for _ in range(200))
    assert alarms <= 24


@pytest.mark.parametrize(("workers", "noise", "within"), [(3, 0.0, 16), (4, 0.1, 14), (8, 0.3, 30), (16, 0.0, 8)])
def test_a_duplicated_pair_is_found_and_is_the_highest(workers, noise, within):
    rng = _rng()
    values = rng.normal(size=(20 + within, workers, 1))
    values[20:, 2] = values[20:, 1] + noise * rng.normal(size=(within, 1))
    pair = pairs_of(workers).index((1, 2))
    found = heights(values)
    assert int(np.argmax(found)) == pair
    alarm = alarm_of(log_e_of_pairs(values, [pair])[:, 0], threshold=_threshold(workers))
    assert alarm is not None
    assert 17 <= alarm.first <= 23
    assert np.count_nonzero(found >= _threshold(workers)) == 1


def test_closeness_is_small_for_a_pair_and_one_for_any_other():
    rng = _rng()
    values = rng.normal(size=(200, 4, 2))
    values[:, 3] = values[:, 0] + 0.1 * rng.normal(size=(200, 2))
    assert closeness(values, 0, 3) == pytest.approx(0.1 / np.sqrt(2), rel=0.3)
    assert 0.8 < closeness(values, 1, 2) < 1.3


def test_a_third_worker_that_is_shifted_does_not_make_the_others_close():
    values = _rng().normal(size=(60, 3, 1))
    values[:, 2] += 30
    assert heights(values)[0] > _threshold(3)  # the nearest two, step after step
    assert closeness(values, 0, 1) > 0.7


def test_a_third_worker_that_is_noisy_does_not_make_the_others_close_where_there_is_a_fourth():
    values = _rng().normal(size=(60, 4, 1))
    values[:, 3] *= 10
    assert closeness(values, 0, 1) > 0.7
