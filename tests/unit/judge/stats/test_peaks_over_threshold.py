"""The law of jumps along time: exact where its assumptions hold, and equal to slow sums."""

import math

import numpy as np
import pytest

from trueline.judge.stats.peaks_over_threshold import (
    FEWEST,
    LEVEL_STEPS,
    SPREAD_STEPS,
    STEPS_BEFORE,
    TAIL,
    SpikePast,
    extend_past,
    find_spikes,
    find_spikes_of_many,
    log_probability,
    num_judged,
    scores,
    scores_of_many,
)

NORMAL_MAD = 0.6744897501960817
LINE = math.log(5e-6)


def noise(num_steps, *, seed=0, spread=0.1):
    return spread * np.random.default_rng(seed).standard_normal(num_steps)


@pytest.mark.parametrize("num", [FEWEST, 40, 200])
def test_probabilities_of_exponential_scores_are_as_often_as_they_say(num):
    rng = np.random.default_rng(1)
    draws = 30_000
    log_p = np.array([log_probability(row[-1], row[:-1]) for row in rng.exponential(size=(draws, num + 1))])
    for level in (1e-2, 1e-3):
        hits = int(np.count_nonzero(log_p <= math.log(level)))
        assert abs(hits - level * draws) <= 4 * math.sqrt(level * draws)


def test_probability_equals_the_formula_by_plain_loops():
    before = np.random.default_rng(2).exponential(size=90)
    ordered = sorted(before.tolist(), reverse=True)
    excesses = [value - ordered[TAIL] for value in ordered[:TAIL]]
    ratio = (9.0 - ordered[TAIL]) / (sum(excesses) / TAIL)
    expected = (TAIL + 1) / 91 * (1 + ratio / TAIL) ** -TAIL
    assert math.exp(log_probability(9.0, before)) == pytest.approx(expected, rel=1e-12)


def test_a_score_that_is_not_among_the_largest_or_a_flat_past_says_nothing():
    before = np.arange(30.0)
    assert log_probability(19.0, before) == 0.0
    assert math.exp(log_probability(19.0 + 1e-9, before)) == pytest.approx(11 / 31)
    assert log_probability(5.0, np.zeros(30)) == 0.0


def test_scores_equal_medians_by_plain_loops():
    log_T = np.cumsum(noise(150))
    score_T, level_T, spread_T = scores(log_T)
    levels = {t: float(np.median(log_T[t - LEVEL_STEPS : t])) for t in range(LEVEL_STEPS, 150)}
    for t in range(150):
        past = [abs(log_T[i] - levels[i]) for i in range(max(LEVEL_STEPS, t - SPREAD_STEPS), t)]
        if len(past) < LEVEL_STEPS:
            assert math.isnan(score_T[t])
            continue
        spread = float(np.median(past)) / NORMAL_MAD
        assert (level_T[t], spread_T[t]) == pytest.approx((levels[t], spread), rel=1e-12)
        assert score_T[t] == pytest.approx((log_T[t] - levels[t]) / spread, rel=1e-12)


def planted(num_steps=300, *, at=200, size=3.0, length=1, seed=0):
    log_T = noise(num_steps, seed=seed)
    log_T[at : at + length] += size
    return log_T


def test_a_jump_is_told_with_its_first_and_last_step():
    (spike,) = find_spikes(planted(length=5), log_level=LINE, least=0.1)
    assert (spike.first, spike.last, spike.back) == (200, 204, True)
    assert spike.level == pytest.approx(0.0, abs=0.1)
    assert spike.value == pytest.approx(3.0, abs=0.4)
    assert spike.log_p < LINE


def test_a_jump_that_stays_is_one_and_has_not_come_back():
    (spike,) = find_spikes(planted(length=100), log_level=LINE, least=0.1)
    assert (spike.first, spike.last, spike.back) == (200, 299, False)


def test_each_of_several_jumps_is_told():
    log_T = planted()
    log_T[230] += 3.0
    assert [spike.first for spike in find_spikes(log_T, log_level=LINE, least=0.1)] == [200, 230]


def test_jumps_that_come_again_and_again_are_usual():
    log_T = noise(2000)
    log_T[100::50] += 3.0
    assert 2 <= len(find_spikes(log_T, log_level=LINE, least=0.1)) <= 4


def test_a_jump_down_or_below_the_least_size_is_none():
    assert find_spikes(planted(size=-3.0), log_level=LINE, least=0.1) == []
    assert find_spikes(planted(size=3.0), log_level=LINE, least=4.0) == []


def test_the_past_is_forgotten_where_a_jump_was_asked_for():
    assert find_spikes(planted(length=100), log_level=LINE, least=0.1, starts=(200,)) == []
    assert find_spikes(planted(length=100), log_level=LINE, least=0.1, starts=(100,)) != []


def test_no_step_is_judged_before_there_are_enough():
    at = STEPS_BEFORE
    assert find_spikes(planted(at=at - 1, size=50.0), log_level=LINE, least=0.1) == []
    (spike,) = find_spikes(planted(at=at, size=50.0), log_level=LINE, least=0.1)
    assert spike.first == at
    assert num_judged(np.zeros(at)) == 0
    assert num_judged(np.zeros(100), starts=(50,)) == 100 - 2 * at


def test_steps_that_are_not_measured_are_left_out():
    log_T = planted()
    gaps = np.insert(log_T, [10, 120, 199], np.nan)
    (spike,) = find_spikes(gaps, log_level=LINE, least=0.1)
    assert (spike.first, spike.last) == (203, 203)
    with_inf = np.where(np.isnan(gaps), np.inf, gaps)
    assert find_spikes(with_inf, log_level=LINE, least=0.1) == [spike]


def test_a_series_that_does_not_move_is_not_judged():
    log_T = np.zeros(200)
    log_T[150] = 5.0
    assert find_spikes(log_T, log_level=LINE, least=0.1) == []


@pytest.mark.parametrize("seed", range(40))
def test_in_pieces_a_jump_is_found_in_the_piece_where_the_first_of_the_whole_is(seed):
    rng = np.random.default_rng(seed)
    one, num_steps = seed % 2 == 0, int(rng.integers(60, 2600))
    log_TP = np.cumsum(rng.normal(size=(num_steps, 1 if one else 5)) / 50, axis=0)
    log_TP += rng.standard_t(3, size=log_TP.shape) / 10
    log_TP[rng.random(log_TP.shape) < rng.choice([0, 0.02, 0.3])] = np.nan
    line = math.log(rng.choice([1e-2, 1e-3, 1e-4]))
    find = find_spikes_of_many if not one else lambda log_TP, **how: find_spikes(log_TP[:, 0], **how)
    first = next((spike.first for spike in find(log_TP, log_level=line, least=0.1)), num_steps)
    past, begin = SpikePast.empty(log_TP.shape[1]), 0
    while begin < num_steps:
        end = min(begin + int(rng.integers(1, 400)), num_steps)
        past = extend_past(past, log_TP[begin:end], log_level=line, least=0.1, single=one)
        assert (past is None) == (begin <= first < end)
        if past is None:
            return
        begin = end
    known_TP = log_TP[np.isfinite(log_TP).any(axis=1)]
    score_TP = scores(known_TP[:, 0])[0][:, None] if one else scores_of_many(known_TP)[0]
    highest_T = np.where(np.isfinite(score_TP), score_TP, -np.inf).max(axis=1)
    assert np.array_equal(past.scores, highest_T[-1000:])
