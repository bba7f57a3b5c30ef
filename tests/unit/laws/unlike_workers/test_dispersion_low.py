"""dispersion-low: workers on the same samples are found though dropout hides it, as a whole and in pairs."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.healthy_run import healthy_rows, write_run
from tests.unit.made_series import alike_batches, independent, same_batches, series_from

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.data_split.consumed import Samples
from trueline.laws.unlike_workers import dispersion_high, dispersion_low
from trueline.laws.unlike_workers.outliers import decided_outliers
from trueline.schema.errors import CannotTell

BUDGET = AlarmBudget()


def _copied(series, first, second, *, noise=0.1, since=0, columns=("loss", "log_norm", "cosine")):
    rng = np.random.default_rng(9)
    for name in columns:
        values = getattr(series, name)
        spread = noise * values.std(axis=1, ddof=1).mean()
        values[since:, second] = values[since:, first] + rng.normal(0, spread, len(values) - since)
    return series


@pytest.mark.parametrize(("workers", "num_parts"), [(2, 8), (2, 64), (4, 2), (4, 8), (8, 4), (64, 2)])
def test_the_same_batches_under_dropout_are_found_place_by_place(workers, num_parts):
    (finding,) = dispersion_low.judge(series_from(same_batches(workers, num_parts), 30), BUDGET)

    assert (finding.code, finding.severity, finding.ranks) == ("dispersion-low", "warning", tuple(range(workers)))
    assert finding.step_first <= 5
    # The mean of the step takes 1/num_parts of what places have in common, and less of the noise, with it.
    common = 1 - 1 / num_parts
    assert finding.measured == pytest.approx(common / (common + 0.3**2), abs=0.1)
    assert finding.false_alarm_rate < 1e-3
    assert "at the same positions of their batches" in finding.claim


@pytest.mark.parametrize(("workers", "num_parts"), [(2, 8), (2, 32), (4, 8), (8, 4)])
def test_the_same_batches_in_another_order_are_found_and_measured(workers, num_parts):
    (finding,) = dispersion_low.judge(series_from(same_batches(workers, num_parts, shuffled=True), 80), BUDGET)

    assert (finding.severity, finding.ranks) == ("warning", tuple(range(workers)))
    low, high = finding.evidence["interval"]
    assert low < 0.3 / np.sqrt(1 + 0.3**2) < high
    assert "as far apart as different samples would be" in finding.claim


@pytest.mark.parametrize(("num_read", "is_apart", "found"), [(16, True, 0), (16, False, 1), (2, True, 1)])
def test_micro_batches_of_different_samples_may_be_of_different_kinds(num_read, is_apart, found):
    series = series_from(same_batches(4, 2), 30)
    step, worker = np.repeat(np.arange(30), 4), np.tile(np.arange(4), 30)
    digest = (np.arange(120) if is_apart else step).astype(np.uint64)
    consumed = Samples((0, 1, 2, 3), digest, step, worker, np.zeros(120, np.int64), np.zeros(120, np.int64), False)
    series = replace(series, consumed=consumed, samples=np.full(series.loss.shape, float(num_read)))
    claims = [finding.claim for finding in dispersion_low.judge(series, BUDGET)]
    assert sum("same positions" in claim for claim in claims) == found


def test_a_pair_of_many_is_named_place_by_place():
    def draw(rng, step):
        x = rng.standard_normal((5, 16))
        x[4] = x[2] + 0.3 * rng.standard_normal(16)
        return x

    (finding,) = dispersion_low.judge(series_from(draw, 20), AlarmBudget(1.0))
    assert finding.ranks == (2, 4)
    assert "correlation 0.9" in finding.claim


@pytest.mark.parametrize("workers", [2, 4])
def test_batches_that_are_sorted_alike_are_no_copies(workers):
    """By length, say: all workers' losses rise with the place, and the samples differ."""
    series = series_from(lambda rng, step: np.sort(rng.standard_normal((workers, 8)), axis=1), 200)
    assert dispersion_low.judge(series, BUDGET) == []


@pytest.mark.parametrize("since", [25, 40, 80])
@pytest.mark.parametrize(("workers", "noise", "shuffled"), [(4, 0.3, False), (2, 1.0, False), (4, 0.3, True)])
def test_copies_are_dated_from_where_the_batches_become_the_same(workers, noise, shuffled, since):
    shared_batches, own_batches = same_batches(workers, 8, noise=noise, shuffled=shuffled), independent(workers, 8)
    series = series_from(lambda rng, step: (shared_batches if step >= since else own_batches)(rng, step), since + 60)
    (finding,) = dispersion_low.judge(series, BUDGET)
    low, high = finding.evidence["onset_interval"]
    assert low <= since <= high <= low + 15


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_a_duplicated_pair_is_named(workers):
    series = _copied(series_from(independent(workers, 8), 60, with_parts=False), 1, workers - 1)
    (finding,) = dispersion_low.judge(series, BUDGET)
    assert finding.ranks == (1, workers - 1)
    assert finding.measured < 0.3
    assert "times as far from each other as from other ranks" in finding.claim


def test_of_three_workers_the_third_may_be_off_and_all_are_concerned():
    (finding,) = dispersion_low.judge(
        _copied(series_from(independent(3, 8), 60, with_parts=False), 1, 2, columns=("loss", "log_norm")), BUDGET
    )
    assert finding.ranks == (0, 1, 2)
    assert finding.claim.startswith("Ranks 1 and 2 are ")
    assert finding.claim.endswith("it is undecided whether they are copies or rank 0 is faulty.")
    assert finding.evidence["undecided"]


@pytest.mark.parametrize("quantity", ["loss", "log_norm"])
def test_two_of_three_are_no_copies_where_the_third_is_off(quantity):
    """It is off in one quantity and noisy with it in the others, so that the other two are close in all of them."""
    series = series_from(independent(3, 8), 80, with_parts=False)
    rng = np.random.default_rng(2)
    for name, spread in (("loss", 0.14), ("log_norm", 0.3), ("cosine", 0.05)):
        getattr(series, name)[:, 2] += 12 * spread * rng.standard_normal(80) + 30 * spread * (name == quantity)
    assert dispersion_low.judge(series, BUDGET) == []
    assert {outlier.workers for outlier in decided_outliers(series, BUDGET)} == {(2,)}


def test_two_of_three_that_read_different_samples_are_no_copies():
    series = series_from(independent(3, 8), 80, with_parts=False)
    series.loss[:, 2] += 2 * np.random.default_rng(2).standard_normal(80)
    assert [finding.ranks for finding in dispersion_low.judge(series, BUDGET)] == [(0, 1, 2)]
    digest = np.arange(240, dtype=np.uint64)
    step, worker = np.repeat(np.arange(80), 3), np.tile(np.arange(3), 80)
    zero = np.zeros(240, dtype=np.int64)
    consumed = Samples((0, 1, 2), digest, step, worker, zero, zero, False)
    assert dispersion_low.judge(replace(series, consumed=consumed), BUDGET) == []
    digest[worker == 1] = digest[worker == 0]
    assert len(dispersion_low.judge(replace(series, consumed=consumed), BUDGET)) == 1


def test_copies_beside_different_digests_are_not_told_to_compare_digests():
    series = _copied(series_from(independent(4, 8), 60, with_parts=False), 1, 3)
    step, worker = np.repeat(np.arange(60), 4), np.tile(np.arange(4), 60)
    zero = np.zeros(240, dtype=np.int64)
    consumed = Samples((0, 1, 2, 3), np.arange(240, dtype=np.uint64), step, worker, zero, zero, False)
    (finding,) = dispersion_low.judge(replace(series, consumed=consumed), BUDGET)
    assert finding.ranks == (1, 3)
    assert finding.next[0].startswith("The inputs of ranks 1 and 3 differ by digest: ")


@pytest.mark.parametrize("column", ["loss", "log_norm", "cosine"])
def test_a_pair_is_found_in_any_one_column(column):
    series = _copied(series_from(independent(6, 8), 80, with_parts=False), 2, 3, columns=(column,))
    (finding,) = dispersion_low.judge(series, BUDGET)
    assert finding.ranks == (2, 3)


@pytest.mark.parametrize("since", [25, 40, 80])
@pytest.mark.parametrize("workers", [3, 5])
def test_a_pair_is_dated_from_where_it_is_close(workers, since):
    series = _copied(series_from(independent(workers, 8), since + 60, with_parts=False), 0, workers - 1, since=since)
    (finding,) = dispersion_low.judge(series, BUDGET)
    low, high = finding.evidence["onset_interval"]
    assert low <= since <= high <= low + 4
    assert f"since step {finding.step_first}" in finding.claim


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_pair_without_dropout_is_dated_too(noise):
    """After the change nothing varies any more, before it much does."""

    def draw(rng, step):
        x = rng.standard_normal((4, 16))
        x[1] = x[0] + noise * rng.standard_normal(16) if step >= 80 else x[1]
        return x

    (finding,) = dispersion_low.judge(series_from(draw, 200), BUDGET)
    assert (finding.ranks, finding.step_first) == ((0, 1), 80)


def test_three_copies_are_one_finding_and_two_pairs_are_two():
    series = _copied(_copied(series_from(independent(8, 8), 60, with_parts=False), 1, 4), 1, 6)
    (finding,) = dispersion_low.judge(series, BUDGET)
    assert finding.ranks == (1, 4, 6)
    series = _copied(_copied(series_from(independent(8, 8), 60, with_parts=False), 1, 4), 2, 6)
    assert {finding.ranks for finding in dispersion_low.judge(series, BUDGET)} == {(1, 4), (2, 6)}


def test_a_pair_among_several_is_not_reported_as_all():
    def draw(rng, step):
        x = rng.standard_normal((4, 8))
        x[3] = x[2] + 0.1 * rng.standard_normal(8)
        return x

    (finding,) = dispersion_low.judge(series_from(draw, 120), BUDGET)
    assert finding.ranks == (2, 3)


def test_seven_copies_of_eight_are_not_reported_as_all():
    def draw(rng, step):
        x = same_batches(8, 8)(rng, step)
        x[7] = rng.standard_normal(8)
        return x

    (finding,) = dispersion_low.judge(series_from(draw, 60), BUDGET)
    assert finding.ranks == (0, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("workers", [3, 5])
def test_a_worker_that_is_far_away_does_not_make_the_others_a_pair(workers):
    shift = np.zeros(workers)
    shift[-1] = 20
    assert dispersion_low.judge(series_from(independent(workers, 8, shift=shift), 80), BUDGET) == []


@pytest.mark.parametrize(("workers", "seed"), [(8, 21), (8, 64)])
def test_an_outlier_takes_no_part_in_naming_a_pair(workers, seed):
    """Seeds at which a healthy pair alarms, under a loose promise, while the outlier is compared with all."""
    shift = np.zeros(workers)
    shift[-1] = 20
    series = series_from(independent(workers, 8, shift=shift), 100, seed=seed, with_parts=False)
    assert dispersion_low.judge(series, AlarmBudget(10.0)) == []


def test_copies_are_named_beside_an_outlier():
    shift = np.zeros(6)
    shift[5] = 20
    series = _copied(series_from(independent(6, 8, shift=shift), 60, with_parts=False), 1, 3)
    (finding,) = dispersion_low.judge(series, BUDGET)
    assert finding.ranks == (1, 3)


def test_a_noisy_third_worker_does_not_make_the_others_a_pair_where_parts_can_tell():
    def draw(rng, step):
        x = rng.standard_normal((3, 8))
        x[2] += 5 * rng.standard_normal()
        return x

    assert dispersion_low.judge(series_from(draw, 80), BUDGET) == []


@pytest.mark.parametrize(
    ("apart", "severity", "words"),
    [(0.0, "error", "gradient norms agree"), (0.5, "info", "gradient norms differ"), (np.nan, "warning", "equal at")],
)
def test_bitwise_equal_losses(apart, severity, words):
    series = series_from(independent(4, 8), 5, with_parts=False, first_step=20)
    series.loss[:] = series.loss[:, :1]
    series.log_norm[:] = series.log_norm[:, :1] + apart * np.arange(4)
    (finding,) = dispersion_low.judge(series, BUDGET)
    assert (finding.severity, finding.step_first, finding.step_last) == (severity, 20, 24)
    assert finding.claim.startswith("The losses of ranks 0-3 are bitwise equal at 5 steps from 20 to 24")
    assert words in finding.claim


def test_losses_rounded_to_sixteen_bits_or_constant_may_be_equal():
    series = series_from(independent(2, 8), 60)
    series.loss[:] = np.float16(series.loss[:, :1])
    assert dispersion_low.judge(series, BUDGET) == []
    series.loss[:] = 1 / 3
    assert dispersion_low.judge(series, BUDGET) == []


def test_groups_that_are_meant_to_differ_are_judged_apart():
    def draw(rng, step):
        return np.concatenate([same_batches(3, 8)(rng, step), independent(3, 8)(rng, step) + 5])

    (finding,) = dispersion_low.judge(series_from(draw, 60, declared=((0, 1, 2), (3, 4, 5))), BUDGET)
    assert finding.ranks == (0, 1, 2)


@pytest.mark.parametrize("draw", [independent(4, 4, tails=True), alike_batches(4, 4), independent(3, 2)])
def test_healthy_workers_are_silent(draw):
    assert dispersion_low.judge(series_from(draw, 400), BUDGET) == []


@pytest.mark.parametrize("check", [dispersion_low, dispersion_high])
def test_a_deal_that_comes_again_in_every_epoch_is_no_new_evidence(check):
    """Fixed shards of one batch: 8 samples a worker, the same at each step, whatever chance dealt to whom."""
    for seed in range(12):
        dealt = np.random.default_rng(seed).standard_normal((3, 8))
        series = series_from(lambda rng, step, dealt=dealt: dealt + 0.01 * rng.standard_normal((3, 8)), 80)
        series.allowance[1:] = 2 + np.sqrt(2 * np.log(3))
        assert check.judge(series, BUDGET) == []


def test_healthy_series_keep_the_promise():
    """The share of this check is an eighth of one alarm per 10,000 steps; 2,400 steps in runs of 300. More than 1
    have a probability of 4e-4.
    """
    num_findings = sum(
        bool(dispersion_low.judge(series_from(independent(3, 3, tails=True), 300, seed=seed), BUDGET))
        for seed in range(8)
    )
    assert num_findings <= 1


def test_two_workers_without_parts_cannot_tell():
    series = series_from(same_batches(2, 8), 60, with_parts=False)
    with pytest.raises(CannotTell, match="with two workers there is no other pair"):
        dispersion_low.judge(series, BUDGET)


def test_few_steps_cannot_tell_and_say_how_many_can():
    with pytest.raises(CannotTell, match="for pairs 11 are needed"):
        dispersion_low.judge(series_from(independent(4, 8), 5, with_parts=False), BUDGET)


def test_a_healthy_run_is_silent(tmp_path):
    assert dispersion_low.check(write_run(tmp_path, healthy_rows(4, 30))) == []


def test_a_run_of_copies_is_found(tmp_path):
    rows = healthy_rows(4, 40)
    for (step, rank), row in rows.items():
        if rank == 3:
            row["loss"] = rows[step, 1]["loss"] * 1.001
    (finding,) = dispersion_low.check(write_run(tmp_path, rows))
    assert finding.ranks == (1, 3)


@pytest.mark.parametrize("equal", [True, False])
def test_what_digests_of_samples_say_is_not_repeated(tmp_path, equal):
    """Ranks 0 and 1 read the same samples, or have equal losses for another reason."""
    rows = healthy_rows(2, 40)
    for (step, rank), row in rows.items():
        row["loss"] = rows[step, 0]["loss"]
        row["grad_norm"] = rows[step, 0]["grad_norm"]
        row["sample_digests"] = np.array([1 + 10 * step + (0 if equal else rank)], dtype=np.uint64)
    run = write_run(tmp_path, rows)
    assert [finding.severity for finding in dispersion_low.check(run)] == ([] if equal else ["error"])


def test_losses_that_were_averaged_are_told_beside_equal_samples(tmp_path):
    rows = healthy_rows(2, 40)
    for (step, _), row in rows.items():
        row["loss"] = rows[step, 0]["loss"]
        row["sample_digests"] = np.array([1 + 10 * step], dtype=np.uint64)
    assert [finding.severity for finding in dispersion_low.check(write_run(tmp_path, rows))] == ["info"]
