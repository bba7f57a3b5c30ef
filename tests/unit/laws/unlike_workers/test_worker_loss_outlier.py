"""worker-loss-outlier: the rank whose loss stands out, by how much and since when; healthy twins are silent."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.healthy_run import write_run
from tests.unit.noisy_workers import SPREAD, noisy_workers, rows_of, scaled, shifted

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.unlike_workers import worker_loss_outlier
from trueline.schema.errors import CannotTell


def judge(series):
    return worker_loss_outlier.judge(series, AlarmBudget())


def test_a_rank_with_a_higher_loss_is_named_from_a_run(tmp_path):
    series = shifted(noisy_workers(4, 160, num_groups=3), 2, since=100, loss=5 * SPREAD)
    (finding,) = worker_loss_outlier.check(write_run(tmp_path, rows_of(series)))

    assert (finding.code, finding.severity, finding.ranks) == ("worker-loss-outlier", "warning", (2,))
    assert finding.claim == "The loss of rank 2 is 0.478 above the others' mean of 3.753 since step 100."
    assert (finding.step_first, finding.step_last) == (100, 158)
    assert finding.sites == ("100.0/r2/loss/loss#0:out0",)
    assert finding.measured == pytest.approx(5 * SPREAD, abs=0.05)
    assert finding.expected == 0.0
    assert finding.false_alarm_rate < 1e-4
    low, high = finding.evidence["interval"]
    assert low < 5 * SPREAD < high
    assert 100 < finding.evidence["crossed_step"] < 120
    assert finding.evidence["num_compared"] == 4
    assert "worker_groups = [[0, 1, 3]]" in finding.next[-1]


def test_global_ranks_and_steps_are_told_not_positions():
    series = shifted(noisy_workers(3, 160), 1, since=60, loss=-5 * SPREAD)
    (finding,) = judge(replace(series, ranks=(4, 6, 9), steps=series.steps * 10 + 1000))
    assert (finding.ranks, finding.step_first) == ((6,), 1600)
    assert "The loss of rank 6 is" in finding.claim
    assert " below the others' mean " in finding.claim


def test_two_workers_are_both_told_of():
    (finding,) = judge(shifted(noisy_workers(2, 200), 1, since=0, loss=5 * SPREAD))
    assert finding.ranks == (0, 1)
    assert finding.claim.startswith("The loss of rank 1 is ")
    assert " above that of rank 0 of " in finding.claim
    assert finding.claim.endswith("since step 0; of two workers it is undecided which is faulty.")
    assert finding.evidence["undecided"] is True


def test_of_two_workers_own_history_says_why_one_is_named():
    rng = np.random.default_rng(0)
    series = noisy_workers(2, 400)
    series = shifted(replace(series, loss=4 + SPREAD * rng.standard_normal((400, 2))), 1, since=300, loss=4 * SPREAD)
    (finding,) = judge(series)
    assert finding.ranks == (1,)
    assert finding.claim.endswith("rank 1 is named because its own series jumps there and the other's does not.")


def test_no_majority_is_undecided():
    series = noisy_workers(4, 200)
    for worker in (0, 2):
        series = shifted(series, worker, since=0, loss=5 * SPREAD)
    (finding,) = judge(series)
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.claim.endswith("no majority agrees, so it is undecided which are faulty.")
    assert finding.next[-1].endswith("list the ranks that should agree in the plan: worker_groups = [[0, 2], [1, 3]].")


def test_an_episode_names_its_last_step():
    (finding,) = judge(shifted(noisy_workers(4, 400), 3, since=100, until=150, loss=5 * SPREAD))
    assert " at steps 100-1" in finding.claim
    assert 145 <= finding.step_last <= 155


def test_a_loss_that_is_scaled_with_its_gradient_is_left_to_worker_scale():
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 2.0, since=100, loss_too=True)
    assert judge(series) == []


def test_healthy_workers_are_silent(tmp_path):
    assert judge(noisy_workers(4, 1000)) == []
    assert worker_loss_outlier.check(write_run(tmp_path, rows_of(noisy_workers(3, 60)))) == []


def test_a_shift_of_all_workers_is_silent():
    series = noisy_workers(4, 400)
    series.loss[200:] += 50 * SPREAD
    assert judge(series) == []


def test_too_few_steps_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="5 steps have losses to compare; with 3 workers"):
        worker_loss_outlier.check(write_run(tmp_path, rows_of(noisy_workers(3, 5))))
