"""worker-scale: the factor and its interval; harder data, noise and turned gradients are no scale."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.healthy_run import write_run
from tests.unit.noisy_workers import in_one_group, noisy_workers, rows_of, scaled, shifted

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.intervals import Estimate
from trueline.laws.unlike_workers import worker_grad_norm_outlier, worker_loss_outlier, worker_scale
from trueline.laws.unlike_workers.gradient_scale import largest_deviation, scales
from trueline.laws.unlike_workers.outliers import find_outliers


def judge(series):
    return worker_scale.judge(series, AlarmBudget())


def reasons(series):
    """What is said against a scale, of the one outlier there is."""
    (scale,) = scales(series, AlarmBudget())
    return scale.answer, scale.contradictions


@pytest.mark.parametrize("factor", [0.5, 1.1, 2.0])
@pytest.mark.parametrize("loss_too", [True, False])
def test_a_scaled_worker_is_told_with_its_factor(factor, loss_too):
    series = scaled(noisy_workers(4, 600, num_groups=3), 1, factor, since=100, loss_too=loss_too)
    (finding,) = judge(series)

    assert (finding.code, finding.severity, finding.ranks) == ("worker-scale", "error", (1,))
    low, high = finding.evidence["interval"]
    assert low < factor < high < 1.1 * low
    assert finding.measured == pytest.approx(factor, rel=0.03)
    assert finding.evidence["loss_scaled"] is loss_too
    assert worker_grad_norm_outlier.judge(series, AlarmBudget()) == []
    assert worker_loss_outlier.judge(series, AlarmBudget()) == []


def test_where_losses_are_too_noisy_a_scale_is_likely_only():
    """Groups alike to a quarter of ln c, and a loss neither shown nor rejected to be where a scale leaves it."""
    series = scaled(noisy_workers(4, 600, num_groups=3), 1, 1.1, since=100, loss_too=False)
    log_loss = 4 + np.random.default_rng(3).normal(0, 0.4, series.loss.shape)
    log_loss[100:, 1] += np.delete(log_loss[100:], 1, axis=1).mean() - log_loss[100:, 1].mean()
    (finding,) = judge(replace(series, loss=np.exp(log_loss)))
    assert (finding.severity, finding.evidence["likely_only"]) == ("warning", True)

    log_loss[100:, 1] -= 0.04  # 2.6 errors from 0: neither rejected at 1e-3 nor believed
    assert reasons(replace(series, loss=np.exp(log_loss))) == ("cannot tell yet", ())
    assert judge(replace(series, loss=np.exp(log_loss))) == []


def test_the_claim_says_what_was_measured(tmp_path):
    series = scaled(noisy_workers(3, 200, num_groups=3), 2, 2.0, since=100, loss_too=True)
    (finding,) = worker_scale.check(write_run(tmp_path, rows_of(series)))
    assert finding.claim == (
        "The gradient of rank 2 is 2.03 times what the others have (1.97 to 2.09) since step 100, in every parameter "
        "group, and so is its loss."
    )
    assert (finding.step_first, finding.step_last, finding.expected) == (100, 199, 1.0)
    assert finding.sites == ("100.0/r2/grad/all#0:out0",)


def test_of_two_workers_which_is_scaled_is_undecided():
    (finding,) = judge(scaled(noisy_workers(2, 400, num_groups=3), 0, 2.0, since=0, loss_too=True))
    assert (finding.severity, finding.ranks) == ("warning", (0, 1))
    assert " times that of rank 1 (" in finding.claim
    assert finding.claim.endswith("; of two workers it is undecided which is faulty.")
    low, high = finding.evidence["interval"]
    assert low < 2 < high


def test_groups_that_move_apart_are_no_scale():
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 1.5, since=100, loss_too=True)
    series = in_one_group(series, "group_log_norm", 1, 0, since=100, by=-0.3)
    assert reasons(series) == ("no", ("the shift in all parameter groups",))
    assert judge(series) == []


def test_a_loss_that_moves_by_another_factor_is_no_scale():
    series = shifted(
        scaled(noisy_workers(4, 400, num_groups=3), 1, 1.5, since=100, loss_too=False), 1, since=100, loss=0.8
    )
    assert reasons(series) == ("no", ("the shift of the loss",))
    assert [finding.ranks for finding in worker_loss_outlier.judge(series, AlarmBudget())] == [(1,)]


def test_a_gradient_that_is_turned_is_no_scale():
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 1.5, since=100, loss_too=True)
    assert reasons(shifted(series, 1, since=100, cosine=-0.1)) == ("no", ("the direction",))


def test_a_scaled_worker_that_blurs_the_others_is_still_a_scale():
    """Real vectors: of three noisy gradients one is scaled by 10, and the others' cosines fall as they must."""
    rng = np.random.default_rng(0)
    series = scaled(noisy_workers(3, 300, num_groups=3), 1, 10.0, since=0, loss_too=True)
    for t in range(300):
        gradients = (1 + 3 * rng.standard_normal((3, 200))) * np.array([[1.0], [10.0], [1.0]])
        for n in range(3):
            peer_mean = gradients[[m for m in range(3) if m != n]].mean(axis=0)
            norms = np.linalg.norm(gradients[n]) * np.linalg.norm(peer_mean)
            series.cosine[t, n] = gradients[n] @ peer_mean / norms
    assert series.cosine[:, 1].mean() > 1.2 * series.cosine[:, 0].mean(), "uncorrected, the direction speaks against it"
    (finding,) = judge(series)
    assert finding.ranks == (1,)


def test_a_loss_outlier_that_an_unscaled_loss_cannot_explain_is_told():
    """The gradient alone is doubled, and a hundredth is added to a loss that hardly varies: less than the room."""
    series = scaled(noisy_workers(4, 600, num_groups=3), 1, 2.0, since=100, loss_too=False)
    series = shifted(replace(series, loss=4 + 0.02 * (series.loss - 4)), 1, since=100, loss=0.01)
    assert [finding.evidence["loss_scaled"] for finding in judge(series)] in ([], [False])
    assert [finding.ranks for finding in worker_loss_outlier.judge(series, AlarmBudget())] == [(1,)]


def test_noise_that_parameter_groups_share_does_not_blur_the_factor():
    """The last group is noisy, and the whole with it: what differs between groups is taken out of the whole."""
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 2.0, since=100, loss_too=True)
    noise = np.random.default_rng(1).normal(0, 0.3, series.loss.shape)
    groups = series.group_log_norm + noise[:, :, None] * np.array([0.0, 0.0, 1.5])
    (clear,), (noisy,) = scales(series, AlarmBudget()), scales(replace(series, group_log_norm=groups), AlarmBudget())
    (blurred,) = scales(replace(series, log_norm=series.log_norm + noise, group_log_norm=groups), AlarmBudget())
    assert clear.log_factor.error == pytest.approx(noisy.log_factor.error, rel=0.1)
    assert blurred.log_factor.error < 0.5 * math.hypot(clear.log_factor.error, 0.35 / math.sqrt(300))


def test_without_losses_a_scale_cannot_be_told():
    series = scaled(noisy_workers(4, 300, num_groups=3), 1, 1.5, since=100, loss_too=True)
    series.loss[:] = np.nan
    (scale,) = scales(series, AlarmBudget())
    assert (scale.answer, scale.unknowns) == ("cannot tell yet", ("the shift of the loss",))


def _with_counts(series, name, usual, own, *, since=100):
    counts = np.full(series.loss.shape, float(usual))
    counts[since:, 1] = own
    return replace(series, **{name: counts})


@pytest.mark.parametrize("name", ["tokens", "samples"])
@pytest.mark.parametrize("loss_too", [True, False])
def test_a_scale_cannot_be_told_from_fewer_tokens(name, loss_too):
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 2.0, since=100, loss_too=loss_too)
    few = _with_counts(series, name, 512, 64)
    assert [finding.ranks for finding in judge(series)] == [(1,)]
    assert judge(few) == []
    (finding,) = worker_grad_norm_outlier.judge(few, AlarmBudget())
    assert finding.evidence["scale"] == "cannot tell"
    assert finding.evidence["scale_because"] == [f"another number of {name}"]
    assert finding.claim.endswith(f", on 0.12 times as many {name}, which explains it: a mean over more is less noisy.")
    assert finding.severity == "info"


def test_a_longer_gradient_than_fewer_tokens_explain_is_a_warning():
    few = _with_counts(scaled(noisy_workers(4, 400, num_groups=3), 1, 2.0, since=100, loss_too=False), "tokens", 64, 32)
    (finding,) = worker_grad_norm_outlier.judge(few, AlarmBudget())
    assert (finding.severity, finding.claim.endswith(", on 0.5 times as many tokens.")) == ("warning", True)


def test_a_scale_is_told_where_tokens_differ_by_little_or_by_chance():
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 2.0, since=100, loss_too=True)
    assert len(judge(_with_counts(series, "tokens", 512, 460))) == 1
    counts = np.random.default_rng(0).integers(64, 512, series.loss.shape).astype(float)
    assert len(judge(replace(series, tokens=counts))) == 1


def test_a_scale_is_not_called_likely_on_a_few_steps():
    """The losses are too noisy to be sure; from the alarm on, effects rest on the steps after it."""
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 1.5, since=100, loss_too=False)
    noisy = np.exp(4 + np.random.default_rng(3).normal(0, 0.3, series.loss.shape))
    (outlier,) = find_outliers(replace(series, loss=noisy), AlarmBudget(), "norm")
    answers = {
        scale.log_factor.num_steps: scale.answer
        for length in range(outlier.crossed + 10, 180)
        for scale in scales(_cut(replace(series, loss=noisy), length), AlarmBudget())
        if scale.likely
    }
    assert min(answers) < 30 <= max(answers)
    assert all(answer == ("yes" if steps >= 30 else "cannot tell yet") for steps, answer in answers.items())


def _cut(series, length):
    names = ("steps", "loss", "log_norm", "cosine", "group_log_norm", "group_cosine", "tokens", "samples", "allowance")
    return replace(series, **{name: getattr(series, name)[:length] for name in names})


def test_healthy_workers_are_silent():
    assert judge(noisy_workers(4, 1000, num_groups=3)) == []


def test_the_bound_of_the_deviation_falls_with_the_errors():
    assert largest_deviation([Estimate(0.0, 0.01, 100)] * 8) < 0.015
    assert largest_deviation([Estimate(0.1, 0.01, 100)] * 8) > 0.1
    assert largest_deviation([Estimate(0.0, float("inf"), 1)]) == float("inf")


def test_a_scale_stays_one_however_long_it_is_watched():
    """Of the loss 1 % is a term that is not scaled: far beyond chance after 4,000 steps, and negligible."""
    series = scaled(noisy_workers(4, 4000, num_groups=3), 1, 2.0, since=100, loss_too=True)
    loss = 4 + 0.02 * (series.loss - 4)
    loss[100:, 1] = 3.96 * 2 + 0.04
    assert [finding.ranks for finding in judge(replace(series, loss=loss))] == [(1,)]


def test_losses_that_are_negative_have_no_factor_and_a_single_one_is_left_out():
    series = scaled(noisy_workers(4, 400, num_groups=3), 1, 2.0, since=100, loss_too=True)
    series.loss[50, 0] = -1.0
    assert [finding.ranks for finding in judge(series)] == [(1,)]
    (scale,) = scales(replace(series, loss=series.loss - 6), AlarmBudget())
    assert scale.unknowns == ("the shift of the loss",)


def test_a_large_factor_must_be_known_as_closely_as_a_small_one():
    """Harder data makes loss and gradients larger by much, and by amounts that scatter over groups and steps."""
    series = scaled(noisy_workers(4, 40, num_groups=4), 1, 4.0, since=0, loss_too=True)
    groups = series.group_log_norm.copy()
    groups[:, 1] += 1.3 * np.random.default_rng(3).standard_normal(groups[:, 1].shape)
    (scale,) = scales(replace(series, group_log_norm=groups), AlarmBudget())
    assert (scale.answer, scale.likely) == ("cannot tell yet", False)
