"""Jumps step by step are those of the whole series, as far as these are told one by one."""

from __future__ import annotations

import numpy as np
import pytest

from trueline.judge.stats.next_spike import NextSpike
from trueline.judge.stats.peaks_over_threshold import ABOVE, LEVEL_STEPS, STEPS_BEFORE, find_spikes, scores

LOG_LEVEL, LEAST = np.log(2.5e-6), np.log(2.5)


def jumps(log_T):
    series = NextSpike(log_level=LOG_LEVEL, least=LEAST)
    return [t for t, value in enumerate(log_T) if series.add(float(value)) is not None]


@pytest.mark.parametrize("seed", range(6))
def test_the_first_jump_is_that_of_find_spikes(seed):
    rng = np.random.default_rng(seed)
    log_T = 0.1 * rng.standard_t(8, 2600) - 2e-4 * np.arange(2600)
    at = [60 + 7 * seed, 1300, 2500]
    log_T[at] += [3.0, 2.0, 4.0]
    first = find_spikes(log_T, log_level=LOG_LEVEL, least=LEAST)[0].first
    assert jumps(log_T)[0] == first == at[0]


def test_scores_and_levels_are_those_of_a_whole_series():
    log_T = 0.1 * np.random.default_rng(3).standard_t(3, 300)
    series = NextSpike(log_level=0.0, least=-np.inf)  # whatever is far up is told
    told = {t: jump for t, value in enumerate(log_T) if (jump := series.add(float(value))) is not None}
    score_T, level_T, _ = scores(log_T)
    assert set(told) == set(np.flatnonzero(score_T > ABOVE)) - set(range(STEPS_BEFORE))
    assert [(jump.score, jump.level) for jump in told.values()] == [
        (pytest.approx(score_T[t]), pytest.approx(level_T[t])) for t in told
    ]


def test_each_step_of_a_jump_that_lasts_is_told():
    log_T = 0.05 * np.random.default_rng(0).normal(size=200)
    log_T[100:103] += 4.0
    assert jumps(log_T) == [100, 101, 102]


def test_what_recurs_is_told_each_time_and_the_first_steps_are_not_judged():
    log_T = 0.05 * np.random.default_rng(0).normal(size=900)
    assert jumps(np.r_[log_T[: STEPS_BEFORE - 1], 5.0]) == []
    log_T[100::50] += 4.0
    assert jumps(log_T) == list(range(100, 900, 50))


def test_a_series_that_has_risen_for_good_is_at_its_new_level_soon():
    log_T = 0.05 * np.random.default_rng(0).normal(size=400)
    log_T[200:] += 4.0
    told = jumps(log_T)
    assert told == list(range(200, 200 + len(told)))
    assert LEVEL_STEPS // 2 <= len(told) <= LEVEL_STEPS


def test_a_past_that_is_forgotten_is_none():
    series = NextSpike(log_level=LOG_LEVEL, least=LEAST)
    noise = 0.05 * np.random.default_rng(0).normal(size=STEPS_BEFORE + 1)
    for value in noise:
        series.add(float(value))
    series.forget()
    assert series.add(5.0) is None
