"""sample-repeats: batches that come again in order, soon or from a restart on; and what only looks like that."""

import numpy as np
import pytest
from tests.unit.healthy_run import rank_env, write_run, write_starts

from trueline.laws.data_split import sample_repeats
from trueline.laws.data_split.repeats_in_order import Batches, find_regular_repeat, find_reread
from trueline.schema.columns.loss_values import CLAMPED, EXPONENTIAL, LOG_SIGMOID
from trueline.schema.errors import CannotTell

STREAM = {"stream": True, "num_workers": 2, "sampler": "_InfiniteConstantSampler"}
MAP = {"stream": False, "num_workers": 0, "sampler": "DistributedSampler", "dataset_len": 320, "num_replicas": 2}


def rows_of(batches, *, rank=0, epoch=None, first=0, micro=1):
    """One step for each ``micro`` batches."""
    steps = [np.concatenate(batches[at : at + micro]) for at in range(0, len(batches), micro)]
    extra = {} if epoch is None else {"epoch": epoch}
    return {
        (first + step, rank): {"sample_digests": digests.astype(np.uint64), "num_micro": micro, **extra}
        for step, digests in enumerate(steps)
    }


def fresh(num, size=4, *, seed=0):
    return list(1 + np.random.default_rng(seed).permutation(num * size).reshape(num, size))


def found_in(tmp_path, rows, data=None):
    ranks = {rank for _, rank in rows}
    envs = {rank: rank_env(rank, len(ranks), data=data or {}) for rank in ranks}
    return sample_repeats.check(write_run(tmp_path, rows, envs=envs))


@pytest.mark.parametrize("times", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 4])
def test_a_stream_that_its_loader_workers_do_not_split_is_found(tmp_path, times, size):
    batches = [batch for batch in fresh(40, size) for _ in range(times)]
    (finding,) = found_in(tmp_path, rows_of(batches), STREAM | {"num_workers": times})

    assert (finding.code, finding.severity, finding.ranks) == ("sample-repeats", "error", (0,))
    assert finding.claim == (
        f"Rank 0 reads each batch {times} times in a row, as many as its loader has workers ({times}), since step 0: "
        f"{40 * (times - 1)} of {40 * times} batches are repeats."
    )
    assert "get_worker_info" in finding.next[0]
    assert not any("DistributedSampler" in line for line in finding.next)


def test_shards_that_two_loader_workers_share_repeat_at_a_lag(tmp_path):
    batches = [batch for pair in range(20) for batch in 2 * fresh(40)[2 * pair : 2 * pair + 2]]
    (finding,) = found_in(tmp_path, rows_of(batches), STREAM | {"num_workers": 4})
    assert "each batch 2 times 2 batches apart" in finding.claim


def test_micro_batches_of_one_step_are_told_where_the_loader_explains_them(tmp_path):
    rows = rows_of([batch for batch in fresh(40) for _ in range(2)], micro=2)
    assert [finding.severity for finding in found_in(tmp_path / "stream", rows, STREAM)] == ["error"]
    assert found_in(tmp_path / "map", rows, MAP) == []


def test_several_updates_on_each_batch_are_a_warning(tmp_path):
    (finding,) = found_in(tmp_path, rows_of([batch for batch in fresh(40) for _ in range(3)]), MAP)
    assert finding.severity == "warning"


@pytest.mark.parametrize(("kind", "is_told"), [(EXPONENTIAL, False), (CLAMPED, False), (LOG_SIGMOID, True)])
def test_passes_over_a_rollout_are_no_repeats(tmp_path, kind, is_told):
    rows = rows_of([batch for batch in fresh(40) for _ in range(3)])
    rows[0, 0]["likelihood_ratios"] = [0, kind, 4, 4, 0]
    assert bool(found_in(tmp_path, rows, MAP)) is is_told


def test_it_starts_where_the_repeats_do(tmp_path):
    batches = [*fresh(60), *(batch + 1000 for batch in fresh(40) for _ in range(2))]
    (finding,) = found_in(tmp_path, rows_of(batches), STREAM)
    assert finding.step_first == 60


def _order(kind, rng):
    if kind == "one batch for ever":
        return [np.arange(1, 5)] * 120
    if kind == "few rows":
        return list(rng.integers(1, 4, (120, 1)))
    if kind == "with replacement":
        return list(rng.integers(1, 30, (120, 2)))
    if kind == "epochs in one order":
        return [batch for _ in range(12) for batch in np.arange(1, 41).reshape(10, 4)]
    if kind == "two batches by turns":
        return [np.arange(1, 5), np.arange(5, 9)] * 60
    if kind == "reshuffled":
        return [batch for _ in range(12) for batch in (1 + rng.permutation(40)).reshape(10, 4)]
    rows = np.sort(rng.integers(1, 200, 240))  # in file order, with equal rows after each other
    return list(rows.reshape(120, 2))


@pytest.mark.parametrize(
    "kind",
    [
        *("one batch for ever", "few rows", "with replacement", "epochs in one order", "two batches by turns"),
        *("reshuffled", "sorted"),
    ],
)
@pytest.mark.parametrize("epochs_seen", [True, False])
def test_honest_orders_are_silent(tmp_path, kind, epochs_seen):
    rng = np.random.default_rng(1)
    for number in range(2):
        rows = rows_of(_order(kind, rng))
        for (step, _), row in rows.items():
            row |= {"epoch": step // 10} if epochs_seen else {}
        assert found_in(tmp_path / str(number), rows, MAP) == []


def test_exchangeable_orders_keep_the_promise():
    """300 shuffles of 60 batches of which every other one is equal to another; the level is 1e-6 each."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        order = rng.permutation(np.repeat(np.arange(30), 2))
        batches = Batches(tuple(order[:, None].astype(np.uint64)), np.arange(60), np.zeros(60, dtype=np.int64))
        assert find_regular_repeat(batches, tests=1) is None


def _resumed(tmp_path, first, second, *, restart, data=MAP, micro=1):
    starts = []
    for begin, batches in ((0, first), (restart, second)):
        rows = {}
        for rank in range(2):
            rows |= rows_of([batch + 1000 * rank for batch in batches], rank=rank, first=begin, epoch=0, micro=micro)
        starts.append((begin, rows))
    run = write_starts(tmp_path, starts)
    for env in run.env.values():
        env.data = data
    return sample_repeats.check(run)


def test_a_restart_that_reads_the_epoch_from_its_beginning_is_found(tmp_path):
    """The job died at step 25 and goes on from the checkpoint of step 20, at the sampler's first sample."""
    epoch = fresh(40)
    (finding,) = _resumed(tmp_path, epoch[:25], epoch[:15], restart=20)

    assert (finding.severity, finding.ranks, finding.step_first) == ("error", (0, 1), 20)
    assert finding.claim == (
        "After the restart at step 20, ranks 0 and 1 read again what start 1 had read from step 0 on, in the same "
        "order: 120 of 120 samples, up to step 34."
    )


@pytest.mark.parametrize(("skipped", "says"), [(10, True), (11, False)])
def test_updates_that_are_skipped_as_if_they_were_batches_are_counted(tmp_path, skipped, says):
    epoch = fresh(40)
    (finding,) = _resumed(tmp_path, epoch, epoch[skipped:38], restart=10, micro=4)
    text = "10 micro-batches were skipped, as many as there had been updates, and an update reads 4."
    assert (text in finding.claim) is says
    assert "read again what start 1 had read from step 2 on" in finding.claim


@pytest.mark.parametrize(
    ("digest", "loss", "is_told"), [(1020, 9.0, False), (1015, 9.0, True), (0, 20.0, False), (0, 9.0, True)]
)
def test_steps_that_are_made_again_from_their_checkpoint_read_the_same(tmp_path, digest, loss, is_told):
    """Nothing tells that the job, which was killed after step 25, is at its step 20 again, but weights or loss."""
    epoch = fresh(40)
    first, second = rows_of(epoch[:25], epoch=0), rows_of(epoch[20:], first=25, epoch=0)
    for (step, _), row in first.items():
        row |= {"param_digests": np.array([1000 + step] * 4, dtype=np.uint64), "loss": float(step)}
    second[25, 0] |= {"param_digests": np.array([digest] * 4, dtype=np.uint64), "loss": loss}
    run = write_starts(tmp_path, [(0, first), (25, second)])
    assert bool(sample_repeats.check(run)) is is_told


def test_a_restart_that_goes_on_where_it_was_is_silent(tmp_path):
    epoch = fresh(40)
    assert _resumed(tmp_path, epoch[:25], epoch[20:], restart=20) == []


def test_a_restart_in_the_second_epoch_of_one_order_is_found(tmp_path):
    epoch = fresh(40)
    (finding,) = _resumed(tmp_path, [*epoch, *epoch[:20]], epoch, restart=60)
    assert (finding.step_first, finding.evidence["like_step"]) == (60, 40)


def test_a_restart_that_takes_the_order_of_the_first_epoch_in_the_second_is_found(tmp_path):
    """As many samples as an epoch has lie between, but of two orders: some of them twice, others never."""
    epoch = fresh(40)
    second = np.random.default_rng(7).permutation(np.concatenate(epoch)).reshape(40, -1)
    (finding,) = _resumed(tmp_path, [*epoch, *second[:20]], epoch[20:], restart=60)
    assert (finding.step_first, finding.evidence["like_step"]) == (60, 20)


@pytest.mark.parametrize("data", [MAP, STREAM])
def test_epochs_in_one_order_that_are_whole_are_silent(tmp_path, data):
    """The restart falls on the end of an epoch; of a stream, the passes before show how long one is."""
    epoch = fresh(40)
    first = epoch * (2 if data is STREAM else 1)
    assert _resumed(tmp_path, first, epoch, restart=len(first), data=data) == []


def test_a_shuffle_of_few_rows_may_begin_as_another_did(tmp_path):
    rng = np.random.default_rng(3)
    for number in range(4):
        first, second = (list(rng.integers(1, 3, (12, 1))) for _ in range(2))
        assert _resumed(tmp_path / str(number), first, second, restart=12, data={}) == []


def test_as_many_samples_as_come_again_are_what_chance_has_to_explain():
    """The first two of 40 rows begin a shuffle once in 1,560; the 40 places to begin at raise that to 1 in 39."""
    before, now = (Batches((np.arange(40, dtype=np.uint64),), np.zeros(1, int), np.zeros(1, int)) for _ in range(2))
    for num_equal in (1, 2, 40):
        order = np.concatenate([np.arange(num_equal), np.arange(num_equal, 40)[::-1]]).astype(np.uint64)
        reread = find_reread([before], Batches((order,), now.steps, now.epochs), tests=1)
        assert (reread is not None) == (num_equal == 40)


def test_without_digests_it_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="digests"):
        sample_repeats.check(write_run(tmp_path, {(0, 0): {"loss": 1.0}}))


def test_a_rank_that_holds_a_batch_while_others_go_on_is_named(tmp_path):
    going, batches = rows_of(fresh(20), epoch=0), fresh(20, seed=1)
    hanging = [*batches[:5], *[batches[5]] * 15]
    (findings,) = found_in(tmp_path / "one", going | rows_of(hanging, rank=1, epoch=0), MAP)
    assert (findings.ranks, findings.step_first, findings.step_last, findings.measured) == ((1,), 5, 19, 15.0)
    blank = rows_of(hanging, rank=1, epoch=0)
    for (step, _), row in blank.items():
        row["target_digests"] = np.array([step], dtype=np.uint64)
    assert found_in(tmp_path / "blank", going | blank, MAP) == []  # new labels: new batches, whose inputs are blank
    ranks = rows_of(hanging, epoch=0) | rows_of(hanging, rank=1, epoch=0)
    assert found_in(tmp_path / "all", ranks, MAP) == []  # training on one batch on purpose


@pytest.mark.parametrize(("declares", "number"), [({"shuffle": True}, 1), ({"shuffle": False}, 0), ({}, 0)])
def test_a_loader_that_shuffles_and_is_begun_anew_at_every_step_is_told(tmp_path, declares, number):
    batch = fresh(1)[0]
    rows = {
        (step, rank): {"sample_digests": (batch + rank).astype(np.uint64), "num_micro": 1, "epoch": step}
        for step in range(12)
        for rank in range(2)
    }
    findings = found_in(tmp_path / "more", rows, MAP | {"batch_size": 4} | declares)
    assert [finding.ranks for finding in findings] == [(0, 1)] * number
    assert found_in(tmp_path / "all", rows, MAP | {"batch_size": 160} | declares) == []  # a step is an epoch


@pytest.mark.parametrize("epoch", [None, 0])
def test_a_rank_whose_stream_has_ended_holds_its_last_batch(tmp_path, epoch):
    """With a loader of torch, whose epochs are seen, and without one."""
    rows = rows_of(fresh(60), rank=0, epoch=epoch) | rows_of([*fresh(25), *[fresh(25)[-1]] * 35], rank=1, epoch=epoch)
    (finding,) = found_in(tmp_path, rows, STREAM)
    assert (finding.ranks, finding.step_first, finding.evidence["kind"]) == ((1,), 24, "held")
