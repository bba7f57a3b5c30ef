"""worker-grad-norm-outlier: the rank, the factor and the groups; a pure scale is told elsewhere."""

import math

import numpy as np
import pytest
from tests.unit.healthy_run import write_run
from tests.unit.noisy_workers import in_one_group, noisy_workers, rows_of, scaled, shifted

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.unlike_workers import worker_grad_norm_outlier
from trueline.schema.errors import CannotTell


def judge(series):
    return worker_grad_norm_outlier.judge(series, AlarmBudget())


def harder(series, worker, *, since):
    """Harder data: the loss rises by a tenth, norms by 10 % in the first group and 100 % in the last."""
    series = shifted(series, worker, since=since, loss=0.4, log_norm=0.3)
    for group, extra in enumerate(np.linspace(-0.2, 0.4, len(series.group_names))):
        series = in_one_group(series, "group_log_norm", worker, group, since=since, by=float(extra))
    return series


def test_harder_data_on_one_rank_is_no_scale(tmp_path):
    series = harder(noisy_workers(4, 200, num_groups=3), 1, since=50)
    (finding,) = worker_grad_norm_outlier.check(write_run(tmp_path, rows_of(series)))

    assert (finding.code, finding.severity, finding.ranks) == ("worker-grad-norm-outlier", "warning", (1,))
    assert finding.evidence["scale"] == "no"
    assert "the shift in all parameter groups" in finding.evidence["scale_because"]
    assert 45 <= finding.step_first <= 52
    assert finding.claim.startswith("The gradient of rank 1 is 1.")
    assert " times as long as the others'" in finding.claim
    assert finding.expected == 1.0
    assert set(finding.evidence["groups"]) >= {"head", "blocks.0"}


def test_a_fault_in_one_group_is_told_with_its_name(tmp_path):
    series = in_one_group(noisy_workers(4, 300, num_groups=3), "group_log_norm", 3, 2, since=100, by=0.5)
    (finding,) = worker_grad_norm_outlier.check(write_run(tmp_path, rows_of(series)))
    assert finding.ranks == (3,)
    assert " times as long as the others' in head since step" in finding.claim
    assert finding.measured == pytest.approx(math.exp(0.5), rel=0.1)
    assert list(finding.evidence["groups"]) == ["head"]
    assert finding.sites[0].endswith("/r3/grad/head#0:out0")
    assert "head" in finding.next[1]


def test_a_pure_scale_is_left_to_worker_scale():
    assert judge(scaled(noisy_workers(4, 400, num_groups=3), 1, 1.5, since=100, loss_too=True)) == []


def test_a_scale_that_cannot_be_told_yet_says_what_is_missing():
    series = scaled(noisy_workers(4, 300), 1, 1.5, since=100, loss_too=True)
    (finding,) = judge(series)
    assert finding.evidence["scale"] == "cannot tell yet"
    assert finding.evidence["scale_because"] == ["the shift in all parameter groups"]


def test_two_workers_are_both_told_of():
    (finding,) = judge(shifted(noisy_workers(2, 300, num_groups=3), 0, since=0, log_norm=-0.7, loss=0.3))
    assert finding.ranks == (0, 1)
    assert finding.claim.startswith("The gradient of rank 1 is ")
    assert "times as long as that of rank 0 since step" in finding.claim
    assert finding.measured == pytest.approx(2, rel=0.1)


def test_healthy_workers_are_silent():
    assert judge(noisy_workers(4, 1000, num_groups=3)) == []


def test_gradients_that_all_grow_are_silent():
    series = noisy_workers(4, 400, num_groups=3)
    series.log_norm[200:] += 5
    series.group_log_norm[200:] += 5
    assert judge(series) == []


def test_without_gradients_it_cannot_tell(tmp_path):
    rows = {key: {"loss": row["loss"]} for key, row in rows_of(noisy_workers(3, 40)).items()}
    with pytest.raises(CannotTell, match="no step has the gradient norms of two workers"):
        worker_grad_norm_outlier.check(write_run(tmp_path, rows))
