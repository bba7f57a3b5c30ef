"""worker-direction-outlier: the rank whose gradient points elsewhere; low cosines that all share are healthy."""

import numpy as np
import pytest
from tests.unit.healthy_run import write_run
from tests.unit.noisy_workers import in_one_group, noisy_workers, rows_of, scaled, shifted

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.unlike_workers import dispersion_low, worker_direction_outlier
from trueline.laws.unlike_workers.outliers import find_outliers
from trueline.schema.errors import CannotTell


def judge(series):
    return worker_direction_outlier.judge(series, AlarmBudget())


def test_a_flipped_sign_is_found(tmp_path):
    series = shifted(noisy_workers(3, 120, num_groups=3), 2, since=60, cosine=-0.4)
    (finding,) = worker_direction_outlier.check(write_run(tmp_path, rows_of(series)))

    assert (finding.code, finding.severity, finding.ranks) == ("worker-direction-outlier", "warning", (2,))
    assert finding.claim == (
        "The gradient of rank 2 has a mean cosine of -0.19 to the mean of the others since step 60; the others have "
        "0.21."
    )
    assert finding.measured == pytest.approx(-0.2, abs=0.03)
    assert finding.expected == pytest.approx(0.2, abs=0.03)
    assert (finding.step_first, finding.step_last) == (60, 119)
    assert finding.sites == ("60.0/r2/grad/all#0:out0",)


def test_one_group_that_points_elsewhere_is_named(tmp_path):
    series = in_one_group(noisy_workers(4, 200, num_groups=3), "group_cosine", 0, 1, since=50, by=-0.3)
    (finding,) = worker_direction_outlier.check(write_run(tmp_path, rows_of(series)))
    assert finding.ranks == (0,)
    assert finding.claim.startswith("The gradient of rank 0 in blocks.0 has a mean cosine of -0.")
    assert list(finding.evidence["groups"]) == ["blocks.0"]


def test_cosines_near_zero_on_all_workers_are_healthy():
    series = noisy_workers(4, 1000, num_groups=3)
    series.cosine[:] -= 0.2
    series.group_cosine[:] -= 0.2
    assert judge(series) == []


def test_others_that_are_blurred_by_a_scaled_worker_are_not_told_again():
    """Of three workers one is scaled by 3: the two others' cosines fall, by the same law for both."""
    series = scaled(noisy_workers(3, 400, num_groups=3), 1, 3.0, since=100, loss_too=False)
    for worker in (0, 2):
        series = shifted(series, worker, since=100, cosine=-0.02)
    assert judge(series) == []


def _with_copies(workers, copies, *, num_steps=200, noise=3.0, turned=None):
    """Real vectors: gradients with a common part; ``copies`` share their noise, ``turned`` has the common part's
    opposite.
    """
    rng = np.random.default_rng(0)
    series = noisy_workers(workers, num_steps)
    for t in range(num_steps):
        own = rng.standard_normal((workers, 200))
        own[list(copies)] = own[copies[0]]
        common = np.ones((workers, 1))
        if turned is not None:
            common[turned] = -1
        gradients = common + noise * own + 0.3 * rng.standard_normal((workers, 200))
        for n in range(workers):
            peer_mean = np.delete(gradients, n, axis=0).mean(axis=0)
            norms = np.linalg.norm(gradients[n]) * np.linalg.norm(peer_mean)
            series.cosine[t, n] = gradients[n] @ peer_mean / norms
    return series


@pytest.mark.parametrize("workers", [4, 8])
def test_copies_that_are_named_as_such_are_not_told_again(workers):
    series = _with_copies(workers, (1, 2))
    assert len(find_outliers(series, AlarmBudget(), "direction")) > 0
    assert [finding.ranks for finding in dispersion_low.judge(series, AlarmBudget())] == [(1, 2)]
    assert judge(series) == []


def test_a_flipped_sign_is_told_beside_copies():
    series = _with_copies(8, (1, 2), turned=5)
    assert [finding.ranks for finding in judge(series)] == [(5,)]


@pytest.mark.parametrize("equal", [True, False])
def test_workers_whose_samples_are_equal_are_not_told_again(tmp_path, equal):
    """Ranks 1 and 2 agree better with the others, though no pair is close by its values."""
    series = noisy_workers(8, 120, num_groups=3)
    for worker in (1, 2):
        series = shifted(series, worker, since=0, cosine=0.15)
    rows = rows_of(series)
    for (step, rank), row in rows.items():
        row["sample_digests"] = np.array([1 + 10 * step + (1 if equal and rank == 2 else rank)], dtype=np.uint64)
    findings = worker_direction_outlier.check(write_run(tmp_path, rows))
    assert [finding.ranks for finding in findings] == ([] if equal else [(1,), (2,)])


@pytest.mark.parametrize("by", ["losses", "digests"])
def test_the_third_of_three_is_not_off_where_the_others_are_copies(tmp_path, by):
    series = _with_copies(3, (1, 2))
    assert [finding.ranks for finding in judge(series)] == [(0,)]
    if by == "losses":
        series.loss[:, 2] = series.loss[:, 1] + 0.001 * np.random.default_rng(5).standard_normal(len(series.loss))
    rows = rows_of(series)
    for (step, rank), row in rows.items():
        if by == "digests":
            row["sample_digests"] = np.array([1 + 10 * step + min(rank, 1)], dtype=np.uint64)
    assert worker_direction_outlier.check(write_run(tmp_path, rows)) == []


def test_healthy_workers_are_silent():
    assert judge(noisy_workers(8, 1000, num_groups=3)) == []


def test_two_workers_have_one_cosine_and_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="it takes three"):
        worker_direction_outlier.check(write_run(tmp_path, rows_of(noisy_workers(2, 60))))


def test_without_cosines_it_cannot_tell():
    series = noisy_workers(4, 100)
    series.cosine[:] = float("nan")
    with pytest.raises(CannotTell, match="no step has the gradient directions"):
        judge(series)
