"""Who is compared with whom at each step, and what a Run says of each worker."""

import math

import numpy as np
import pytest
from tests.unit.healthy_run import healthy_rows, rank_env, write_run

from trueline.judge.stats.alarm_budget import SHARES, AlarmBudget, alarm_budget_of
from trueline.laws.unlike_workers.series import WorkerSeries, lasting_weights, series_of
from trueline.schema.errors import CannotTell
from trueline.schema.plan import Plan


def by_hand(samples=None, *, steps=4, workers=3, **more):
    values = np.arange(steps * workers, dtype=float).reshape(steps, workers)
    if samples is not None:
        more["samples"] = np.array(samples, dtype=float)
    return WorkerSeries(np.arange(steps), tuple(range(workers)), values, values, values, **more)


def test_what_is_left_out_is_not_measured():
    series = by_hand(group_names=("a", "b"))
    assert series.group_cosine.shape == series.group_log_norm.shape == (4, 3, 2)
    assert np.isnan(series.tokens).all()
    assert not series.allowance.any()
    (values,) = series.compared(series.loss)
    np.testing.assert_array_equal(values, series.loss)


def test_a_short_last_batch_is_not_compared():
    (mask,) = by_hand([[8, 8, 8], [8, 8, 8], [8, 8, 8], [8, 8, 3]]).compared_masks()
    np.testing.assert_array_equal(mask, [[True] * 3] * 3 + [[True, True, False]])


def test_of_two_workers_with_unequal_last_batches_none_is_compared():
    (values,) = (series := by_hand([[8, 8], [8, 8], [8, 5]], steps=3, workers=2)).compared(series.loss)
    assert np.count_nonzero(np.isfinite(values[2])) == 1


def test_last_batches_at_other_steps_on_each_worker_are_not_compared():
    """Epochs of four steps of its own on each worker: most steps have some worker's last batch."""
    sizes = np.full((40, 3), 8)
    for worker in range(3):
        sizes[worker::4, worker] = 5
    (mask,) = by_hand(sizes, steps=40).compared_masks()
    np.testing.assert_array_equal(mask, sizes == 8)


@pytest.mark.parametrize("epoch", [2, 3])
def test_last_batches_of_small_epochs_are_not_compared(epoch):
    sizes = np.full((40, 4), 8)
    sizes[epoch - 1 :: epoch] = [8, 3, 5, 7]
    (mask,) = by_hand(sizes, steps=40, workers=4).compared_masks()
    np.testing.assert_array_equal(mask, sizes == 8)


@pytest.mark.parametrize("workers", [2, 4])
def test_sizes_that_always_vary_are_left_alone(workers):
    sizes = np.random.default_rng(0).integers(4, 12, (200, workers))
    (mask,) = by_hand(sizes, steps=200, workers=workers).compared_masks()
    assert mask.all()


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_worker_that_lastingly_has_fewer_samples_is_compared_at_once(workers):
    """Of 400 steps only the last five; two uneven last batches before them stay out."""
    sizes = np.full((400, workers), 8)
    sizes[[100, 200], 1] = 3
    sizes[395:, 1] = 1
    (mask,) = by_hand(sizes, steps=400, workers=workers).compared_masks()
    np.testing.assert_array_equal(mask, sizes != 3)
    (mask,) = by_hand(sizes[:399], steps=399, workers=workers).compared_masks()
    np.testing.assert_array_equal(mask, sizes[:399] == 8)


def test_declared_groups_are_compared_among_themselves():
    series = by_hand([[8, 8, 2, 2]] * 4, workers=4, declared=((0, 1), (2, 3)))
    first, second = series.compared_masks()
    np.testing.assert_array_equal(first[0], [True, True, False, False])
    np.testing.assert_array_equal(second[0], [False, False, True, True])
    groups = np.ones((4, 5, 4))
    np.testing.assert_array_equal(np.isfinite(series.compared(groups)[1][0, 2]), [False, False, True, True])


def test_a_run_becomes_series(tmp_path):
    rows = healthy_rows(3, 6)
    rows[2, 1]["grad_norm"] = 0.0
    rows[3, 2]["loss"] = math.inf
    plan = {"false_alarms": 0.5, "worker_groups": [[0, 2]]}
    run = write_run(tmp_path, rows, plan=plan)
    series = series_of(run)

    assert series.group_names == ("embed", "blocks.0", "head")
    assert series.log_norm[4, 2] == pytest.approx(math.log(rows[4, 2]["grad_norm"]))
    assert series.group_log_norm[4, 2, 1] == pytest.approx(math.log(rows[4, 2]["group_grad_norms"][1]))
    assert np.isnan(series.log_norm[2, 1])
    assert np.isnan(series.loss[3, 2])
    assert np.isnan(series.cosine).all()
    assert (series.tokens == 8).all()
    assert series.declared == ((0, 2),)
    assert alarm_budget_of(run) == AlarmBudget(0.5)


def test_other_groups_on_each_rank_are_not_compared(tmp_path):
    envs = {rank: rank_env(rank, 2, groups=[{"name": f"g{rank}", "params": []}]) for rank in range(2)}
    assert series_of(write_run(tmp_path, healthy_rows(2, 2), envs=envs)).group_names == ()


def test_one_worker_is_not_compared(tmp_path):
    with pytest.raises(CannotTell, match="only one worker"):
        series_of(write_run(tmp_path, healthy_rows(1, 2)))


def digested(rows, ids_of):
    """The rows with ``ids_of(step, rank)`` as sample digests."""
    for (step, rank), row in rows.items():
        row["sample_digests"] = np.asarray(ids_of(step, rank), dtype=np.uint64) + 1
    return rows


def test_fresh_samples_leave_nothing_to_allow(tmp_path):
    rows = digested(healthy_rows(2, 8), lambda step, rank: 100 * step + 10 * rank + np.arange(4))
    series = series_of(write_run(tmp_path, rows))
    assert (series.samples == 4).all()
    assert not series.allowance.any()


def test_a_shard_that_is_read_again_is_allowed_its_own_mean(tmp_path):
    """Epochs of 4 steps of 4 samples: from step 4 on each worker reads its 16 samples again."""
    rows = digested(healthy_rows(2, 12), lambda step, rank: 100 * (step % 4) + 10 * rank + np.arange(4))
    allowance = series_of(write_run(tmp_path, rows)).allowance
    assert not allowance[:4].any()
    np.testing.assert_allclose(allowance[4:], (2 + math.sqrt(2 * math.log(2))) * math.sqrt(4 / 16))


def test_samples_that_change_hands_are_not_a_shard(tmp_path):
    """The second epoch swaps the workers' shards, the third swaps them back: both have read all samples then."""
    rows = digested(
        healthy_rows(2, 12), lambda step, rank: 100 * (step % 4) + 10 * ((rank + step // 4) % 2) + np.arange(2)
    )
    assert not series_of(write_run(tmp_path, rows)).allowance.any()


def test_the_shares_add_up_to_the_promise():
    assert sum(SHARES.values()) == pytest.approx(1)
    assert AlarmBudget(1.0).log_threshold("loss", among=8) == pytest.approx(math.log(10_000 * 6 * 8))
    assert AlarmBudget() == AlarmBudget(Plan().false_alarms)
    assert AlarmBudget(2.0).log_threshold("loss", among=4) == pytest.approx(math.log(10_000 * 6 * 4 / 2))
    assert AlarmBudget().false_alarm_rate("loss", math.log(10_000 * 48), among=8, num_steps=100) == pytest.approx(0.01)


def weighed(loss_slope, norm_slope, *, last=3.0, num_steps=60, uneven=0.0):
    """Losses and log norms of three workers that grow with their tokens by these powers; the last has more of them."""
    draw = np.random.default_rng(0)
    tokens_TN = np.tile([32.0, 32.0, 32.0 * last], (num_steps, 1)) + np.round(uneven * draw.normal(size=(num_steps, 3)))
    share_TN = tokens_TN / tokens_TN.mean(axis=1, keepdims=True)
    loss_TN = (1 + 0.05 * draw.normal(size=(num_steps, 3))) * share_TN**loss_slope
    return loss_TN, 0.05 * draw.normal(size=(num_steps, 3)) + norm_slope * np.log(share_TN), tokens_TN


def test_a_worker_that_always_counts_more_is_weighed_by_its_tokens():
    np.testing.assert_allclose(lasting_weights(*weighed(1.0, 0.7))[0], [0.6, 0.6, 1.8])


@pytest.mark.parametrize(
    "given",
    [
        weighed(0.0, -0.3),  # means
        weighed(0.6, 0.7),  # a loss twice as large on three times as many tokens
        weighed(1.0, 0.7, last=1.0),  # equal numbers
        weighed(1.0, 0.7, uneven=4.0),  # numbers that vary, where no worker always has more
    ],
)
def test_others_are_compared_as_they_are(given):
    np.testing.assert_array_equal(lasting_weights(*given), np.ones((60, 3)))
