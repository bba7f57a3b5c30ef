"""The benchmark of acting: which steps are spoilt, and what so many alarms in so many steps allow."""

from __future__ import annotations

import pytest
from benchmarks.acting.__main__ import bound, planted
from benchmarks.acting.jobs import CLEAN, SPIKES


def test_a_spike_is_at_one_step_or_recurs():
    at = {spike.name: [step for step in range(600) if spike.hits(step, 600)] for spike in (*SPIKES, CLEAN)}
    assert at["targets"] == at["rate"] == [400]
    assert at["recurring"] == list(range(100, 600, 50))
    assert at[""] == []


@pytest.mark.parametrize(("count", "expected"), [(0, 2.996), (1, 4.744), (5, 10.513)])
def test_the_bound_is_that_of_a_poisson_rate(count, expected):
    # half of the 90 % quantile of chi squared with 2 (count + 1) degrees of freedom, in any table
    assert bound(count, 1000) == pytest.approx(expected / 1000, rel=1e-3)


def test_steps_of_the_run_are_those_of_the_training_with_what_was_left_out():
    assert planted([100, 149, 198]) == [100, 150, 200]
