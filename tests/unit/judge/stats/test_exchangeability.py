"""The bets against exchangeable workers: expectations, false alarms, delays."""

import math

import numpy as np
import pytest

from trueline.judge.stats.alarms import alarm_of
from trueline.judge.stats.exchangeability import (
    BETS,
    false_alarm_rate,
    log_detector,
    log_e_values,
    log_heights,
    log_threshold,
    scores,
)
from trueline.laws.jumps import run_series


def _normal(steps: int, workers: int) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((steps, workers))


@pytest.mark.parametrize("workers", [2, 3, 4, 9])
def test_the_e_values_of_one_step_average_to_one_over_the_workers(workers):
    values = np.random.default_rng(11).standard_cauchy((40, workers))
    e = np.exp(log_e_values(scores(values)))
    np.testing.assert_allclose(e.mean(axis=1), 1.0, rtol=1e-12)


def test_an_unmeasured_worker_neither_bets_nor_counts():
    values = _normal(30, 4)
    values[:, 2] = np.nan
    whole = log_e_values(scores(values))
    np.testing.assert_array_equal(whole[:, 2], 0.0)
    np.testing.assert_allclose(np.exp(whole[:, [0, 1, 3]]).mean(axis=1), 1.0, rtol=1e-12)


def test_a_worker_without_company_is_not_judged():
    values = np.full((5, 3), np.nan)
    values[:, 1] = 7.0
    np.testing.assert_array_equal(
        log_detector(log_e_values(scores(values)))[:, [0, 2]], log_detector(np.zeros((5, 2, len(BETS))))
    )


def test_equal_workers_leave_no_evidence():
    np.testing.assert_array_equal(scores(np.ones((20, 4))), 0.0)
    e = log_e_values(scores(np.ones((20, 4))))
    np.testing.assert_array_equal(e, 0.0)


def test_healthy_heavy_tails_keep_the_stated_rate():
    """Promise: at most 1 alarm per 10,000 steps; 400 runs of 250 steps are 100,000, so 10 at most on average. A Poisson
    count of mean 10 exceeds 24 with probability 5e-5.
    """
    values = np.random.default_rng(11).standard_t(3, size=(250, 400, 4))
    heights = log_detector(log_e_values(scores(values))).max(axis=0)
    alarms = np.count_nonzero(heights.max(axis=-1) >= log_threshold(false_alarms=1.0, weight=1 / 4))
    assert alarms <= 24


@pytest.mark.parametrize(("workers", "shift", "within"), [(2, 3.0, 25), (4, 3.0, 15), (8, 1.0, 60)])
def test_a_shifted_worker_is_found_and_is_the_highest(workers, shift, within):
    values = _normal(100 + within, workers)
    values[100:, 1] += shift
    e = log_e_values(scores(values))
    heights = log_detector(e)
    threshold = log_threshold(false_alarms=1.0, weight=1 / workers)
    assert heights[99].max() < threshold
    crossed = int(np.argmax(heights[:, 1] >= threshold))
    assert heights[-1, 1] >= threshold
    if workers > 2:
        assert int(np.argmax(heights[-1])) == 1
    alarm = alarm_of(e[:, 1], threshold=threshold)
    assert alarm is not None
    assert alarm.crossed == crossed
    assert 85 <= alarm.first <= 110


def test_an_allowance_forgives_a_shift_of_its_size():
    values = _normal(3000, 4)
    values[:, 2] += 0.3
    charged = log_detector(log_e_values(scores(values), allowance_TN=0.3))
    plain = log_detector(log_e_values(scores(values)))
    threshold = log_threshold(false_alarms=1.0, weight=1 / 4)
    assert plain[:, 2].max() > threshold > charged[:, 2].max()


def test_the_rate_is_steps_over_height_and_never_above_one():
    assert false_alarm_rate(math.log(1e9), num_steps=1000, weight=0.5) == pytest.approx(2e-6)
    assert false_alarm_rate(0.0, num_steps=1000, weight=0.5) == 1.0


def test_heights_in_pieces_equal_heights_at_once():
    values = np.random.default_rng(11).standard_t(3, size=(700, 2, 5))
    values[300:320, :, 3] = np.nan
    z = scores(values)
    whole = log_detector(log_e_values(z, allowance_TN=0.1))
    np.testing.assert_array_equal(log_heights(z, allowance_TN=0.1), whole)


def test_a_rate_too_small_for_a_float_is_a_bound_and_no_contradiction():
    """0.0 would say that a healthy Run cannot have it at all."""
    assert 0 < false_alarm_rate(915.0, num_steps=100, weight=1.0) <= 1e-299
    assert run_series.false_alarm_rate(-2000.0, "loss", among=1, num_steps=100) > 0
    assert run_series.false_alarm_rate(-math.inf, "loss", among=1, num_steps=100) > 0
