"""What runs that show a fault by chance say, against sums and integrals made here."""

import math
import random

import numpy as np
import pytest
from tests.simulated_jobs import SequentialTest

from trueline.trials.frame.chance import (
    Counts,
    clean_runs_needed,
    decided,
    least_rate,
    log_if_absent,
    log_if_present,
    log_odds_present,
    mean_rate,
    most_rate,
)


def tail(showed, runs, rate):
    return sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(showed, runs + 1))


@pytest.mark.parametrize(("showed", "runs"), [(3, 3), (1, 10), (7, 20), (19, 20)])
def test_the_bounds_are_those_of_clopper_and_pearson(showed, runs):
    low = least_rate(Counts(runs, showed))
    assert tail(showed, runs, low) == pytest.approx(0.05, rel=1e-6)
    if showed < runs:
        high = most_rate(Counts(runs, showed))
        assert 1 - tail(showed + 1, runs, high) == pytest.approx(0.05, rel=1e-6)
    assert least_rate(Counts(5, 0)) == 0
    assert most_rate(Counts(5, 5)) == 1
    assert most_rate(Counts(100, 0)) == pytest.approx(3 / 100, rel=0.02)  # the rule of three


@pytest.mark.parametrize(("rate", "runs"), [(1, 1), (0.9, 2), (0.5, 7), (0.3, 13), (0.2, 21), (0.1, 44), (0.01, 459)])
def test_so_many_clean_runs_say_that_it_is_gone(rate, runs):
    assert clean_runs_needed(rate, error=0.01) == runs
    assert (1 - rate) ** runs <= 0.01 * (1 + 1e-9)
    with pytest.raises(ValueError, match="above 0"):
        clean_runs_needed(0.0, error=0.01)


@pytest.mark.parametrize(("showed", "runs"), [(0, 0), (3, 3), (0, 4), (2, 7)])
def test_rates_are_integrated_over(showed, runs):
    rates = (np.arange(20_000) + 0.5) / 20_000
    outcomes = rates**showed * (1 - rates) ** (runs - showed)
    of_r = 0.5 * outcomes.mean() + 0.5 * (showed == runs)
    of_f = 0.4 * (outcomes * 20 * (1 - rates) ** 19).mean() + 0.6 * (showed == 0)
    assert log_if_present(Counts(runs, showed)) == pytest.approx(math.log(of_r), abs=1e-5)
    assert log_if_absent(Counts(runs, showed)) == pytest.approx(math.log(of_f), abs=1e-5)


def test_three_of_three_make_r_likely_one_and_two_of_three_do_not():
    assert mean_rate(Counts(3, 3)) > 0.95
    assert mean_rate(Counts(3, 2)) == pytest.approx(0.6)


def test_an_arm_without_it_is_as_sure_as_the_arm_with_it_was():
    often = log_odds_present(Counts(4, 0), present=Counts(8, 8), absent=Counts())
    seldom = log_odds_present(Counts(4, 0), present=Counts(8, 2), absent=Counts())
    assert often < -4 < -2 < seldom < 0


@pytest.mark.parametrize("is_there", [True, False])
def test_both_errors_of_a_sequential_test_are_as_asked(is_there):
    test, stream, wrong = SequentialTest(0.5, 0.05), random.Random(3), 0
    for _ in range(2000):
        counts, answer = Counts(), None
        while answer is None:
            counts = counts.with_one(stream.random() < (0.5 if is_there else 0.05))
            answer = decided(test.log_odds(counts), error=0.05)
        wrong += answer is not is_there
    assert 0 < wrong / 2000 < 0.05
