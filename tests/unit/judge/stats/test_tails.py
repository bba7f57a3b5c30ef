"""Probabilities: tails and quantiles against tables and slow truths, test martingales against their own definition."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueline.judge.stats.tails import (
    ODDS,
    binomial_tail,
    chi_square_quantile,
    evidence_start,
    gamma_lower,
    log_e_process,
)


@given(st.integers(0, 30), st.integers(0, 30), st.fractions(0, 1))
def test_binomial_tail_equals_the_exact_sum(hits, trials, chance):
    exact = sum(
        Fraction(math.comb(trials, k)) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1)
    )
    assert binomial_tail(hits, trials, float(chance)) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)


def test_binomial_tail_far_out_is_not_zero():
    assert binomial_tail(1000, 1000, 0.5) == pytest.approx(2.0**-1000, rel=1e-9)


@pytest.mark.parametrize(
    ("probability", "dof", "quantile"),
    [
        # Abramowitz and Stegun, Handbook of Mathematical Functions, table 26.8
        (0.95, 1, 3.84146),
        (0.99, 1, 6.63490),
        (0.5, 2, 1.38629),
        (0.005, 3, 0.0717218),
        (0.995, 7, 20.2777),
        (0.5, 7, 6.34581),
        (0.01, 20, 8.26040),
        (0.99, 30, 50.8922),
        (0.995, 100, 140.169),
    ],
)
def test_chi_square_quantiles_are_those_of_the_table(probability, dof, quantile):
    assert chi_square_quantile(probability, dof) == pytest.approx(quantile, rel=1e-5)


@given(st.floats(0.001, 0.999), st.integers(1, 2000))
def test_quantile_inverts_the_distribution(probability, dof):
    assert gamma_lower(dof / 2, chi_square_quantile(probability, dof) / 2) == pytest.approx(probability, abs=1e-9)


@pytest.mark.parametrize(("probability", "dof"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_quantiles_that_do_not_exist_are_refused(probability, dof):
    with pytest.raises(ValueError, match="chi-square quantile"):
        chi_square_quantile(probability, dof)


def slow_e(hits, trials, chances, blocks):
    """The evidence after the last event by its definition: the mean over odds of the weighted sum over starts."""
    starts = [i for i in range(len(hits)) if i == 0 or blocks[i] != blocks[i - 1]]
    total = 0.0
    for odds in ODDS:
        for number, start in enumerate(starts):
            weight = 0.8 if number == 0 else 0.2 / (number * (number + 1))
            total += weight * math.prod(
                odds**hit / (1 + (odds - 1) * chance) ** trial
                for hit, trial, chance in zip(hits[start:], trials[start:], chances[start:], strict=True)
            )
    return total / len(ODDS)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.01, 1), st.booleans()), min_size=1, max_size=9)
)
def test_evidence_equals_its_definition(events):
    trials = [max(a, b) for a, b, _, _ in events]
    hits = [min(a, b) for a, b, _, _ in events]
    chances = [chance for _, _, chance, _ in events]
    blocks = np.cumsum([opens for *_, opens in events])
    log_e = log_e_process(np.array(hits), np.array(trials), np.array(chances), blocks)

    assert log_e[-1] == pytest.approx(math.log(slow_e(hits, trials, chances, blocks.tolist())), rel=1e-9, abs=1e-9)


def test_weights_of_starts_sum_to_at_most_one():
    events = 50
    ones = np.ones(events, dtype=np.int64)
    log_e = log_e_process(ones, ones, np.ones(events), np.arange(events))
    assert math.exp(log_e[-1]) <= 1


def test_sure_events_are_no_evidence():
    ones = np.ones(100, dtype=np.int64)
    assert log_e_process(ones, ones, np.ones(100), np.zeros(100, dtype=np.int64)).max() <= 0


def test_a_fault_that_begins_late_is_not_buried():
    healthy, faulty = 400, 40
    hits = np.concatenate([np.zeros(healthy), np.ones(faulty)]).astype(np.int64)
    chance, ones = np.full(len(hits), 0.5), np.ones(len(hits), dtype=np.int64)
    block = np.repeat([0, 1], [healthy, faulty])

    assert log_e_process(hits, ones, chance, block).max() > math.log(1e6)
    assert log_e_process(hits, ones, chance, np.zeros_like(block)).max() < 0


def test_coin_flips_pass_a_level_rarely():
    rng = np.random.default_rng(0)
    passed = 0
    for _ in range(2000):
        hits = (rng.random(200) < 0.7).astype(np.int64)
        log_e = log_e_process(hits, np.ones(200, dtype=np.int64), np.full(200, 0.7), np.zeros(200, dtype=np.int64))
        passed += bool(log_e.max() >= math.log(20))
    # At most 100 expected by Ville's inequality; 140 is four standard deviations above.
    assert passed <= 140


def test_evidence_starts_after_the_lowest_sum():
    assert evidence_start(np.array([-1.0, 0.5, -2.0, 1.0, 3.0]), 4) == 3
    assert evidence_start(np.array([1.0, 1.0]), 1) == 0
    assert evidence_start(np.array([0.0, 0.0, 1.0]), 2) == 2
