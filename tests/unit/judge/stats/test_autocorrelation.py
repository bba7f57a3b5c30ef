"""How long workers remember, measured against processes whose memory is known, and what it changes in the evidence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueline.judge.stats import closest_pairs, exchangeability, persistence
from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.autocorrelation import FEWEST_STEPS, INDEPENDENT, Dependence, dependence_of, longest
from trueline.laws.unlike_workers import dispersion_high, worker_loss_outlier
from trueline.laws.unlike_workers.comparable import dependence_among
from trueline.laws.unlike_workers.series import WorkerSeries

STEPS = 2000


def remembering(draw: np.random.Generator, workers: int, *, weight: float, steps: int = STEPS) -> np.ndarray:
    """[T, N] normal values, of which each worker remembers its own last one; (1 + w)/(1 - w) is their V."""
    values = draw.standard_normal((steps, workers))
    for step in range(1, steps):
        values[step] = weight * values[step - 1] + math.sqrt(1 - weight**2) * values[step]
    return values


def series(loss: np.ndarray) -> WorkerSeries:
    nothing = np.full(loss.shape, np.nan)
    workers = loss.shape[1]
    return WorkerSeries(np.arange(len(loss)), tuple(range(workers)), loss, log_norm=nothing, cosine=nothing)


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("law", ["normal", "cauchy", "lognormal", "ties", "changing scale", "common walk"])
def test_independent_steps_are_no_memory(workers: int, law: str) -> None:
    draw = np.random.default_rng([workers, len(law)])
    values = draw.standard_normal((STEPS, workers))
    if law == "cauchy":
        values = draw.standard_cauchy((STEPS, workers))
    if law == "lognormal":
        values = np.exp(1.5 * values)
    if law == "ties":
        values = (draw.random((STEPS, workers)) < 0.02).astype(np.float64)
    if law == "changing scale":
        values = np.exp(values) * np.exp(-np.arange(STEPS) / 300)[:, None]
    if law == "common walk":
        values += np.cumsum(draw.standard_normal((STEPS, 1)), axis=0)
    assert dependence_of(values) == INDEPENDENT


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("weight", [0.5, 0.8, 0.95])
def test_memory_is_no_shorter_than_it_is(workers: int, weight: float) -> None:
    found = dependence_of(remembering(np.random.default_rng(workers), workers, weight=weight))
    true = (1 + weight) / (1 - weight)
    assert true <= found.ratio <= 4 * true
    assert found.reach > 0


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("shift", [0.3, 1.0, 5.0, 100.0])
def test_a_worker_that_is_shifted_from_some_step_on_does_not_remember(workers: int, shift: float) -> None:
    values = np.random.default_rng(workers).standard_normal((STEPS, workers))
    values[STEPS // 3 :, -1] += shift
    assert dependence_of(values) == INDEPENDENT


def test_workers_of_a_mixture_each_do_not_remember() -> None:
    values = np.random.default_rng(0).standard_normal((STEPS, 8)) + np.linspace(-3, 3, 8)
    assert dependence_of(values) == INDEPENDENT


def test_values_that_differ_at_one_worker_alone_are_no_memory() -> None:
    values = np.zeros((STEPS, 8))
    values[:, 1] = remembering(np.random.default_rng(0), 1, weight=0.9)[:, 0]
    assert dependence_of(values) == INDEPENDENT


def test_counts_that_change_once_at_one_worker_are_no_memory() -> None:
    values = np.zeros((400, 2))
    values[100:, 1] = -2.0
    assert dependence_of(values) == INDEPENDENT


def test_too_few_steps_say_nothing() -> None:
    values = remembering(np.random.default_rng(0), 8, weight=0.95, steps=FEWEST_STEPS)
    assert dependence_of(values) != INDEPENDENT
    assert dependence_of(values[1:]) == INDEPENDENT


def test_two_workers_need_more_steps_for_a_growing_fault_is_no_memory() -> None:
    values = np.random.default_rng(0).standard_normal((400, 2))
    values[100:, 1] += np.linspace(0, 8, 300)
    assert dependence_of(values) == INDEPENDENT
    assert dependence_of(remembering(np.random.default_rng(0), 2, weight=0.8, steps=500)) != INDEPENDENT


def test_steps_that_were_not_sampled_do_not_count() -> None:
    values = remembering(np.random.default_rng(0), 8, weight=0.8)
    sparse = np.full((10 * STEPS, 8), np.nan)
    sparse[::10] = values
    assert dependence_of(sparse) == dependence_of(values)


def test_a_thousand_workers_are_judged_by_some_of_them() -> None:
    found = dependence_of(remembering(np.random.default_rng(0), 1024, weight=0.5, steps=400))
    assert 3 <= found.ratio <= 12


def test_logs_of_e_values_are_divided_by_the_ratio() -> None:
    z = exchangeability.scores(np.random.default_rng(0).standard_normal((50, 4)))
    plain, tempered = exchangeability.log_e_values(z), exchangeability.log_e_values(z, dependence_N=3.0)
    np.testing.assert_allclose(tempered, plain / 3.0)
    np.testing.assert_array_equal(exchangeability.log_heights(z), exchangeability.log_heights(z, dependence_N=1.0))
    state = np.zeros((4, len(exchangeability.BETS)))
    for log_e in plain:
        state = (state + 1) * np.exp(log_e / 3.0)
    np.testing.assert_allclose(exchangeability.log_heights(z, dependence_N=3.0)[-1], np.log(state.mean(axis=1)))


def test_pairs_are_divided_too() -> None:
    values = np.random.default_rng(0).standard_normal((60, 5, 1))
    log_e_TKB = closest_pairs.log_e_of_pairs(values, range(10)) / 3.0
    state, best = np.zeros(log_e_TKB.shape[1:]), np.zeros(10)
    for log_e in log_e_TKB:
        state = (state + 1) * np.exp(log_e)
        best = np.maximum(best, state.mean(axis=1))
    np.testing.assert_allclose(closest_pairs.heights(values, dependence_ratio=3.0), np.log(best))


def test_the_past_of_a_lasting_order_ends_where_memory_does() -> None:
    z = np.random.default_rng(0).standard_normal((40, 2))
    log_e = persistence.log_e_values(z, dependence=Dependence(2.0, 7))
    steps = persistence.HORIZONS[0] * 2.0
    for t in (0, 7, 8, 39):
        ages = [t - 8 - s for s in range(t - 7)]
        weights = np.exp(-np.array(ages, dtype=np.float64) / steps)
        mean = (weights[:, None] * z[: max(t - 7, 0)]).sum(axis=0) / (weights.sum() + 2.0)
        low, high = np.argsort(mean, kind="stable")
        expected = math.log(2) - np.logaddexp(0.0, -(mean[high] - mean[low]) * (z[t, high] - z[t, low]))
        assert log_e[t, 0] == pytest.approx(expected / 2.0)


def test_healthy_workers_that_remember_are_not_accused() -> None:
    loss = remembering(np.random.default_rng(3), 8, weight=0.8)
    line = AlarmBudget(10.0).log_threshold("loss", among=8)
    assert exchangeability.log_heights(exchangeability.scores(loss)).max() > line
    assert worker_loss_outlier.judge(series(loss), AlarmBudget(10.0)) == []
    assert dispersion_high.judge(series(loss), AlarmBudget(10.0)) == []


def test_a_worker_that_is_off_among_those_that_remember_is_named_and_the_finding_says_how_long() -> None:
    loss = remembering(np.random.default_rng(3), 8, weight=0.5)
    loss[600:, 5] += 3.0
    (found,) = worker_loss_outlier.judge(series(loss), AlarmBudget())
    assert found.ranks == (5,)
    assert 3 <= found.evidence["memory"] <= 12
    assert found.evidence["memory_steps"] > 0


def test_three_workers_remember_as_long_as_any_of_their_values_shows() -> None:
    draw = np.random.default_rng(0)
    loss, norm = remembering(draw, 3, weight=0.8), draw.standard_normal((STEPS, 3))
    both = WorkerSeries(np.arange(STEPS), (0, 1, 2), loss, norm, cosine=np.full(loss.shape, np.nan))
    members = (0, 1, 2)
    assert dependence_among(both, "log_norm", members) == dependence_among(both, "loss", members) == dependence_of(loss)
    two = WorkerSeries(np.arange(STEPS), (0, 1), loss[:, :2], norm[:, :2], cosine=np.full((STEPS, 2), np.nan))
    assert dependence_among(two, "log_norm", (0, 1)) == INDEPENDENT
    assert dependence_among(two, "loss", (0, 1)) != INDEPENDENT


def test_the_longest_memory_is_the_largest_of_each() -> None:
    assert longest([Dependence(2.0, 30), Dependence(5.0, 4)]) == Dependence(5.0, 30)
    assert longest([]) == INDEPENDENT
