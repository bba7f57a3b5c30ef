"""The bets against re-dealt parts: exact expectations, false alarms, delays, effect sizes."""

import math
from itertools import permutations

import numpy as np
import pytest

from trueline.judge.stats.alarms import alarm_of, steps_needed
from trueline.judge.stats.exchangeability import log_detector, log_threshold
from trueline.judge.stats.permutation import HIGH_BETS, LOW_BETS, NUM_DEALS, log_e_values, spread_ratio

BETS = (*LOW_BETS, *HIGH_BETS)
LOW, HIGH = slice(0, len(LOW_BETS)), slice(len(LOW_BETS), None)


def _rng() -> np.random.Generator:
    return np.random.default_rng(5)


def _series(num_steps, num_workers, num_parts, draw):
    return {t: tuple(draw(num_workers, num_parts)) for t in range(num_steps)}


def _dealt(pool, sizes):
    return tuple(np.split(np.asarray(pool, dtype=float), np.cumsum(sizes)[:-1]))


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (1, 4), (2, 2, 2)])
def test_over_all_deals_of_one_pool_the_e_values_average_to_one(sizes):
    """Few deals are all taken: then the expectation is 1 for every pool, not only in the mean over re-deals."""
    pool = _rng().standard_cauchy(sum(sizes))
    every = {t: _dealt(deal, sizes) for t, deal in enumerate(permutations(pool))}
    e = np.exp(log_e_values(every, np.arange(len(every)), allowance=1.0))
    np.testing.assert_allclose(e.mean(axis=0), 1.0, rtol=1e-9)


@pytest.mark.parametrize("sizes", [(8, 8), (5, 9, 3), (4,) * 8])
def test_with_drawn_re_deals_they_average_to_one_over_deals_and_steps(sizes):
    """3,000 deals of one skewed pool, which the bound of 1 + NUM_DEALS keeps within reach of a mean; six standard
    errors.
    """
    rng = _rng()
    pool = rng.standard_exponential(sum(sizes)) ** 2
    every = {t: _dealt(rng.permutation(pool), sizes) for t in range(3000)}
    e = np.exp(log_e_values(every, np.arange(3000), allowance=1.0))
    error = e.std(axis=0) / math.sqrt(len(e))
    np.testing.assert_array_less(np.abs(e.mean(axis=0) - 1), 6 * error)
    assert np.all(e <= NUM_DEALS + 1)


def test_an_allowance_only_lowers_them():
    sample_losses = _series(200, 3, 4, lambda n, m: _rng().standard_normal((n, m)))
    sample_losses |= {
        t: tuple(_rng().standard_normal((3, 1)) + 0.1 * _rng().standard_normal((3, 4))) for t in range(200, 400)
    }
    exact, charged = (log_e_values(sample_losses, np.arange(400), allowance=allowance) for allowance in (1.0, 2.0))
    assert np.all(charged <= exact + 1e-12)
    assert np.any(charged < exact - 0.1)


def test_the_same_steps_give_the_same_answer_and_other_steps_other_re_deals():
    sample_losses = _series(20, 4, 8, lambda n, m: _rng().standard_normal((n, m)))
    first = log_e_values(sample_losses, np.arange(20))
    np.testing.assert_array_equal(first, log_e_values(sample_losses, np.arange(20)))
    assert np.all(first[0] != first[1])  # equal parts: only the re-deals differ


@pytest.mark.parametrize(
    "arrays",
    [
        (np.ones(3), np.ones(3)),
        (np.array([1.0]), np.array([2.0])),
        (np.array([]), np.array([1.0, 2.0, 3.0])),
        (np.array([np.nan, np.nan]), np.array([1.0, 2.0])),
    ],
)
def test_steps_that_say_nothing_leave_no_evidence(arrays):
    np.testing.assert_array_equal(log_e_values({0: arrays}, np.arange(1)), np.zeros((1, len(BETS))))
    assert spread_ratio({0: arrays}, [0]) is None


def test_parts_without_a_token_do_not_count():
    whole = (np.array([1.0, 2.0, 4.0]), np.array([0.5, 3.0, 7.0]))
    with_gap = (np.array([1.0, np.nan, 2.0, 4.0]), whole[1])
    np.testing.assert_array_equal(log_e_values({0: whole}, np.arange(1)), log_e_values({0: with_gap}, np.arange(1)))


def test_healthy_parts_keep_the_stated_rate():
    """Promise: one alarm per 10,000 steps. 18,000 steps, in runs of 300: a Poisson count of mean 1.8 exceeds 9 with
    probability 2e-5.
    """
    rng = _rng()
    threshold = log_threshold(false_alarms=1.0, weight=0.5)
    alarms = 0
    for _ in range(60):
        sample_losses = _series(300, 2, 3, lambda n, m: rng.standard_t(3, (n, m)))
        e = log_e_values(sample_losses, np.arange(300), allowance=1.0)
        alarms += sum(log_detector(e[:, side]).max() >= threshold for side in (LOW, HIGH))
    assert alarms <= 9


@pytest.mark.parametrize(("workers", "num_parts", "within"), [(2, 8, 40), (4, 8, 15), (8, 4, 12), (64, 2, 8)])
def test_equal_batches_under_dropout_are_found(workers, num_parts, within):
    rng = _rng()
    sample_losses = _series(within, workers, num_parts, lambda n, m: rng.normal(size=m) + 0.2 * rng.normal(size=(n, m)))
    alarm = alarm_of(
        log_e_values(sample_losses, np.arange(within), bets=LOW_BETS),
        threshold=log_threshold(false_alarms=1.0, weight=1 / 24),
    )
    assert alarm is not None
    assert alarm.first <= 2


@pytest.mark.parametrize(("workers", "within"), [(2, 25), (4, 15), (8, 10)])
def test_batches_from_pools_of_their_own_are_found(workers, within):
    rng = _rng()
    shift = np.linspace(-1.5, 1.5, workers)[:, None]
    sample_losses = _series(within, workers, 8, lambda n, m: rng.normal(size=(n, m)) + shift)
    alarm = alarm_of(
        log_e_values(sample_losses, np.arange(within), bets=HIGH_BETS),
        threshold=log_threshold(false_alarms=1.0, weight=1 / 24),
    )
    assert alarm is not None


@pytest.mark.parametrize("effect", [0.3, 1.0, 4.0])
def test_the_ratio_recovers_the_spread_that_was_put_in(effect):
    """Worker means with ``effect`` times the standard deviation that parts of spread 2 explain."""
    rng = _rng()

    def draw(n, m):
        inside = rng.normal(size=(n, m))
        inside -= inside.mean(axis=1, keepdims=True)
        return 5 + 2 * inside + effect * 2 / math.sqrt(m) * rng.normal(size=(n, 1))

    spread = spread_ratio(_series(400, 4, 6, draw), range(400))
    assert spread is not None
    assert spread.low < effect < spread.high
    assert spread.explained == pytest.approx(2 / math.sqrt(6), rel=0.05)
    assert spread.std_between == pytest.approx(effect * 2 / math.sqrt(6), rel=0.1)


def test_the_interval_covers_in_most_repetitions():
    """200 short series: 95 % nominal; fewer than 170 would be 13 standard deviations low."""
    rng = _rng()
    covered = 0
    for _ in range(200):
        spread = spread_ratio(_series(15, 3, 4, lambda n, m: rng.normal(size=(n, m))), range(15))
        covered += spread.low <= 1 <= spread.high
    assert covered >= 170


def test_steps_needed_counts_the_bets():
    assert steps_needed(10.0, nats=math.log(2), num_bets=3) == math.ceil((10 + math.log(3)) / math.log(2))
