"""dispersion-high: workers that differ for good are found and measured; one odd worker and healthy ones are not."""

import numpy as np
import pytest
from tests.unit.healthy_run import healthy_rows, write_run
from tests.unit.made_series import alike_batches, independent, series_from

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.unlike_workers import dispersion_high
from trueline.schema.errors import CannotTell

BUDGET = AlarmBudget()


def _mixtures(num_workers, *, apart=1.0):
    return np.linspace(-apart, apart, num_workers)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("with_parts", [True, False])
def test_a_mixture_on_each_worker_is_found_and_measured(workers, with_parts):
    shift = _mixtures(workers)
    series = series_from(independent(workers, 8, shift=shift), 60, with_parts=with_parts)
    (finding,) = dispersion_high.judge(series, BUDGET)

    assert (finding.code, finding.severity) == ("dispersion-high", "warning")
    assert finding.ranks == tuple(range(workers))
    assert finding.step_first <= 2
    low, high = finding.evidence["interval"]
    assert low < np.sqrt(1 + 8 * shift.var(ddof=1)) < high
    assert finding.false_alarm_rate < 1e-3
    assert "as far apart as" in finding.claim


def test_evidence_starts_where_the_workers_part():
    separated = independent(4, 8, shift=_mixtures(4))
    alike = independent(4, 8)
    series = series_from(lambda rng, step: (separated if step >= 100 else alike)(rng, step), 160)
    (finding,) = dispersion_high.judge(series, BUDGET)
    assert 95 <= finding.step_first <= 106
    assert finding.step_last >= 155


def test_one_odd_worker_is_left_to_the_outlier_checks():
    assert dispersion_high.judge(series_from(independent(4, 8, shift=(0, 0, 2, 0)), 60), BUDGET) == []


def test_norms_that_differ_for_good_are_found():
    norms = independent(6, 1, shift=_mixtures(6, apart=2.0))
    (finding,) = dispersion_high.judge(series_from(independent(6, 8), 80, norms=norms), BUDGET)
    assert finding.evidence["statistic"] == "lasting differences of gradient norms"
    assert finding.sites[0].split("/")[2] == "grad"


def test_batches_that_are_alike_inside_are_an_info():
    (finding,) = dispersion_high.judge(series_from(alike_batches(4, 8), 60), BUDGET)
    assert finding.severity == "info"
    assert "no persistent order" in finding.claim
    assert finding.measured == pytest.approx(3.0, rel=0.2)


def test_alike_batches_of_one_worker_alone_are_left_alone():
    def draw(rng, step):
        x = rng.standard_normal((4, 8))
        x[2] += 3 * rng.standard_normal()
        return x

    assert dispersion_high.judge(series_from(draw, 60), BUDGET) == []


def test_differences_that_are_small_beside_the_noise_are_an_info():
    shift = 0.4 / np.sqrt(8) * np.random.default_rng(1).standard_normal(16)
    (finding,) = dispersion_high.judge(series_from(independent(16, 8, shift=shift), 600), BUDGET)
    assert (finding.severity, finding.measured < 1.1) == ("info", True)


def test_groups_that_are_meant_to_differ_are_not_compared():
    draw = independent(6, 8, shift=(0, 0, 0, 2, 2, 2))
    assert dispersion_high.judge(series_from(draw, 60, declared=((0, 1, 2), (3, 4, 5))), BUDGET) == []
    assert dispersion_high.judge(series_from(draw, 60), BUDGET) != []


def test_what_fixed_shards_explain_is_allowed():
    shift = 0.3 / np.sqrt(8) * _mixtures(8)
    series = series_from(independent(8, 8, shift=shift), 1500)
    assert dispersion_high.judge(series, BUDGET) != []
    series.allowance[:] = 0.3
    assert dispersion_high.judge(series, BUDGET) == []


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_healthy_heavy_tails_are_silent(workers):
    assert dispersion_high.judge(series_from(independent(workers, 4, tails=True), 400), BUDGET) == []


def test_healthy_series_keep_the_promise():
    """The share of this check is an eighth of one alarm per 10,000 steps; 6,000 steps in runs of 300. More than 2
    have a probability of 7e-5.
    """
    num_findings = sum(
        bool(dispersion_high.judge(series_from(independent(3, 3, tails=True), 300, seed=seed), BUDGET))
        for seed in range(20)
    )
    assert num_findings <= 2


def test_equal_losses_leave_it_nothing_to_say():
    series = series_from(independent(4, 8), 60, with_parts=False)
    series.loss[:] = series.loss[:, :1]
    assert dispersion_high.judge(series, BUDGET) == []


def test_few_steps_cannot_tell_and_say_how_many_can():
    series = series_from(independent(2, 8, shift=(0, 2)), 10, with_parts=False)
    with pytest.raises(CannotTell, match=r"10 steps .* with 2 workers .* 25 are needed"):
        dispersion_high.judge(series, BUDGET)


def test_a_healthy_run_is_silent(tmp_path):
    assert dispersion_high.check(write_run(tmp_path, healthy_rows(4, 30))) == []


def test_a_run_of_unlike_workers_is_found(tmp_path):
    rows = healthy_rows(4, 40)
    for (_, rank), row in rows.items():
        row["loss"] += rank
    (finding,) = dispersion_high.check(write_run(tmp_path, rows))
    assert finding.ranks == (0, 1, 2, 3)


def test_losses_that_are_all_equal_are_said_to_be_and_not_to_be_absent(tmp_path):
    rows = {(step, rank): {"loss": 2.0 + step} for step in range(9) for rank in range(2)}
    with pytest.raises(CannotTell, match="all workers have equal losses and gradient norms, at 9 steps") as error:
        dispersion_high.check(write_run(tmp_path, rows))
    assert error.value.reason == "undecidable"
