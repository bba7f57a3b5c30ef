"""shard-overlap: overlapping shards and missing coverage are found and named; healthy repeats are not."""

from itertools import permutations

import numpy as np
import pytest
from tests.simulated_epochs import (
    HEALTHY,
    Size,
    one_seed_each,
    same_batches,
    samples_of,
    sharded,
    with_copies,
)
from tests.unit.healthy_run import rank_env, sample_rows, write_run

from trueline.judge.series.declared_sampling import DeclaredSampling
from trueline.judge.stats.tails import log_likelihood_steps
from trueline.laws.data_split import repeats_in_epoch, shard_overlap
from trueline.laws.data_split.consumed import Samples
from trueline.laws.data_split.coverage import Returns, draws_with_replacement, find_returns, log_e_of_staying
from trueline.laws.data_split.repeats_in_epoch import SeenOnce, find_repeats
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import Attempt, Manifest
from trueline.schema.files.start import Start
from trueline.store.reader import Run
from trueline.store.writer import RunWriter


def envs(num_ranks, num_rows, **facts):
    """Workers that declare a DistributedSampler; a value may be a function of the rank."""
    declared = {
        "sampler": "DistributedSampler",
        "num_replicas": num_ranks,
        "dataset_len": num_rows,
        "shuffle": True,
        "seed": 0,
        "batch_size": 4,
        "sampler_rank": lambda rank: rank,
        **facts,
    }
    return {
        rank: rank_env(
            rank, num_ranks, data={key: value(rank) if callable(value) else value for key, value in declared.items()}
        )
        for rank in range(num_ranks)
    }


def shards(num_rows, num_ranks, *, epochs, part=None, shuffle=True, seed=0):
    """Epochs in which each rank owns its N-th of the rows and reads all of it, or one N-th of that again."""
    rng = np.random.default_rng(seed)
    owned = [np.arange(num_rows)[rank::num_ranks] for rank in range(num_ranks)]
    epochs_of_ranks = []
    for _ in range(epochs):
        orders = [rng.permutation(rows) if shuffle else rows for rows in owned]
        epochs_of_ranks.append([order if part is None else order[rank::num_ranks] for rank, order in enumerate(orders)])
    return epochs_of_ranks


# -- overlap ---------------------------------------------------------------------------------------------------------


def test_a_seed_for_each_rank_is_found_by_digests_alone(tmp_path):
    epochs = one_seed_each(Size(256, 4, 4, 1), np.random.default_rng(0), range(4))
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4)))

    assert finding.severity == "error"
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.measured == 1.0
    assert finding.expected == pytest.approx(0.75, abs=0.05)
    assert finding.false_alarm_rate == 1e-6
    assert finding.evidence["chance_bound"] < 1e-6


@pytest.mark.parametrize("odd", [0, 2])
def test_one_rank_with_another_seed_is_named_by_digests_alone(tmp_path, odd):
    epochs = one_seed_each(Size(512, 4, 4, 1), np.random.default_rng(0), [odd])
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4)))

    assert finding.ranks == (odd,)
    assert f"all of them involving rank {odd}" in finding.claim


def test_one_rank_is_found_by_its_own_test_before_all_together_show_it(tmp_path):
    epochs = one_seed_each(Size(8000, 8, 4, 1), np.random.default_rng(0), [5])
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4, num_steps=68)))
    assert finding.ranks == (5,)


def test_two_ranks_and_a_small_data_set_are_found_after_two_epochs(tmp_path):
    epochs = one_seed_each(Size(64, 2, 4, 2), np.random.default_rng(0), [0, 1])
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 64)))

    assert finding.ranks == (0, 1)


def test_recorded_seeds_settle_it_at_the_first_shared_sample(tmp_path):
    epochs = one_seed_each(Size(8000, 8, 4, 1), np.random.default_rng(0), [0])
    declared = envs(8, 8000, seed=lambda rank: int(rank > 0))
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4, num_steps=20), envs=declared))

    assert (finding.severity, finding.ranks, finding.false_alarm_rate) == ("error", (0,), 0.0)
    assert finding.claim.startswith("The samplers shuffle with different seeds, rank 0 with 0 and ranks 1-7 with 1.")
    assert finding.measured == finding.evidence["samples_shared"] > 0
    for first, again in zip(finding.sites[::2], finding.sites[1::2], strict=True):
        assert ("/r0/" in first) != ("/r0/" in again)


def test_recorded_seeds_warn_before_any_sample_is_shared(tmp_path):
    epochs = HEALTHY["distributed sampler"](Size(8000, 2, 4, 1), np.random.default_rng(0), np.arange(8000))
    declared = envs(2, 8000, seed=lambda rank: rank)
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4, num_steps=2), envs=declared))

    assert (finding.severity, finding.ranks, finding.step_first) == ("warning", (0, 1), None)


def test_seeds_of_unsplit_data_may_differ(tmp_path):
    epochs = shards(400, 2, epochs=2)
    declared = envs(2, 200, seed=lambda rank: rank, num_replicas=1, sampler_rank=0)
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared)) == []


@pytest.mark.parametrize(("num_workers", "num_tests"), [(2, 1), (3, 4)])
def test_each_of_three_workers_has_a_test_of_its_own(num_workers, num_tests):
    """Of two, one is in as many repeats between workers as both."""
    samples = samples_of([[np.arange(8) for _ in range(num_workers)]], 2)
    seen_once = SeenOnce(samples, one_data_set=False)
    assert len(repeats_in_epoch.overlap_tests(samples, find_repeats(samples, seen_once), seen_once)) == num_tests


def test_distinct_rows_make_any_repeat_a_contradiction(tmp_path):
    """One rank forgets set_epoch: the second epoch alone overlaps, too little to be told by chance."""
    rng = np.random.default_rng(0)
    first, second = (sharded(rng.permutation(128), 4) for _ in range(2))
    second[0] = first[0]
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows([first, second], 4), envs=envs(4, 128)))

    assert (finding.severity, finding.ranks, finding.false_alarm_rate) == ("error", (0,), 0.0)
    assert finding.step_first is not None
    assert finding.step_first >= 8
    assert "128 different rows" in finding.claim


def test_overlap_without_epochs_is_found(tmp_path):
    epochs = one_seed_each(Size(256, 4, 4, 1), np.random.default_rng(0), range(4))
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4, epoch_seen=False)))


def test_overlap_that_starts_in_a_later_epoch_is_found(tmp_path):
    healthy = HEALTHY["distributed sampler"](Size(256, 4, 4, 4), np.random.default_rng(1), np.arange(256))
    rows = sample_rows([*healthy, *one_seed_each(Size(256, 4, 4, 1), np.random.default_rng(0), range(4))], 4)
    (finding,) = shard_overlap.check(write_run(tmp_path, rows))

    assert finding.step_first is not None
    assert finding.step_first >= 64


def test_overlap_of_unshuffled_shards_is_a_warning_without_a_rate(tmp_path):
    epochs = one_seed_each(Size(256, 4, 4, 1), np.random.default_rng(0), range(4))
    declared = envs(4, 256, shuffle=False)
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared))

    assert (finding.severity, finding.false_alarm_rate) == ("warning", None)


def test_duplicate_batches_are_left_to_duplicate_data(tmp_path):
    epochs = same_batches(Size(256, 4, 4, 2), np.random.default_rng(0))
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4))) == []


# -- healthy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [0.0, 0.3])
@pytest.mark.parametrize(
    ("kind", "declares"), [*((kind, False) for kind in HEALTHY), ("distributed sampler", True), ("no set_epoch", True)]
)
def test_healthy_consumption_is_silent(tmp_path, kind, declares, copies):
    rng = np.random.default_rng(5)
    size = Size(rows=250, workers=4, batch=4, epochs=3)
    rows = sample_rows(HEALTHY[kind](size, rng, with_copies(size, rng, copies)), 4)
    declared = envs(4, 250) if declares else None

    assert shard_overlap.check(write_run(tmp_path, rows, envs=declared)) == []


@pytest.mark.parametrize("rows", [101, 102, 103])
def test_padding_of_a_sampler_is_silent_with_distinct_rows(tmp_path, rows):
    size = Size(rows, 4, 4, 6)
    epochs = HEALTHY["distributed sampler"](size, np.random.default_rng(1), np.arange(rows))
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(4, rows))) == []


def test_padding_without_epochs_is_silent(tmp_path):
    """Accelerate fills the last round of batches from the start of the order: 15 samples at once, between workers."""
    epochs = HEALTHY["padded batches (accelerate)"](Size(113, 2, 8, 1), np.random.default_rng(1), np.arange(113))
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 8, epoch_seen=False))) == []


def test_padding_in_the_middle_of_unseen_epochs_is_silent(tmp_path):
    """Two passes without epochs: 31 padded samples lie between workers at the end of the first."""
    epochs = HEALTHY["padded batches (accelerate)"](Size(225, 2, 32, 2), np.random.default_rng(1), np.arange(225))
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 32, epoch_seen=False))) == []


def test_accumulation_over_the_end_of_an_epoch_is_silent(tmp_path):
    """Seven batches an epoch and two a step: every other epoch starts in the middle of a step."""
    rng = np.random.default_rng(1)
    orders = [sharded(rng.permutation(112), 2) for _ in range(8)]
    walked = [np.concatenate([order[rank] for order in orders]) for rank in range(2)]
    rows = sample_rows([walked], 16)
    for (step, _), row in rows.items():
        row["epoch"] = (16 * step + 15) // 56
    assert shard_overlap.check(write_run(tmp_path, rows, envs=envs(2, 112))) == []


def test_an_order_that_is_replayed_counts_once(tmp_path):
    """Nine equal pairs that all fell on two workers, and a sampler that is never reshuffled, for forty epochs."""
    rng = np.random.default_rng(1)
    orders = [rng.permutation(100), rng.permutation(np.concatenate([np.arange(9), np.arange(200, 291)]))]
    run = write_run(tmp_path, sample_rows([orders] * 40, 10), envs=envs(2, 200, batch_size=10))
    assert shard_overlap.check(run) == []


def test_shards_that_drop_their_last_batch_are_silent(tmp_path):
    """A sampler of the user's own deals fixed shards and shuffles inside: what one epoch drops the next one brings."""
    rng = np.random.default_rng(1)
    owned = [np.arange(268)[rank::2] for rank in range(2)]
    epochs = [[rng.permutation(rows)[:128] for rows in owned] for _ in range(5)]
    declared = envs(2, 268, sampler="ShardSampler", num_replicas=None, sampler_rank=None, batch_size=8)
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 8), envs=declared)) == []


def test_a_resumed_epoch_is_not_a_gap(tmp_path):
    epochs = HEALTHY["distributed sampler"](Size(256, 2, 4, 3), np.random.default_rng(1), np.arange(256))
    epochs[0] = [order[60:] for order in epochs[0]]
    assert (
        shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 256), plan={"dataset_size": 256}))
        == []
    )


@pytest.mark.parametrize("epoch_seen", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_a_job_that_was_started_again_neither_overlaps_nor_leaves_a_gap(tmp_path, epoch_seen, skips):
    """The epoch begins again with another order and other parts, or goes on where the checkpoint was."""
    first, *whole = HEALTHY["distributed sampler"](Size(256, 2, 4, 3), np.random.default_rng(1), np.arange(256))
    (again,) = HEALTHY["distributed sampler"](Size(256, 2, 4, 1), np.random.default_rng(2), np.arange(256))
    before = sample_rows([[order[:80] for order in first]], 4, epoch_seen=epoch_seen)
    rest = [[order[40:] for order in first] if skips else again, *(whole if epoch_seen else ())]
    after = {(step + 10, rank): row for (step, rank), row in sample_rows(rest, 4, epoch_seen=epoch_seen).items()}
    declared = envs(2, 256) if epoch_seen else {rank: rank_env(rank, 2) for rank in range(2)}
    run = started(tmp_path, [before, after], declared)
    assert run.restarts == [10]
    assert len(run.steps) == 10 + len(after) // 2
    assert shard_overlap.check(run) == []


def test_epochs_that_were_cut_by_a_start_of_the_job_are_no_gaps(tmp_path):
    orders = [
        HEALTHY["distributed sampler"](Size(256, 2, 4, 1), np.random.default_rng(n), np.arange(256)) for n in (1, 2, 3)
    ]
    rows = [sample_rows([[order[:40] for order in epoch]], 4) for (epoch,) in orders]
    later = [{(step + 10 * n, rank): row for (step, rank), row in env.items()} for n, env in enumerate(rows)]
    run = started(tmp_path, later, envs(2, 256))
    assert run.restarts == [10, 20]
    assert shard_overlap.check(run) == []


def started(path, rows_of_starts, declared):
    """The Run of several starts of a job of two workers whose data set has 256 rows, opened."""
    attempts = [Attempt(step=min(step for step, _ in rows)) for rows in rows_of_starts]
    facts = {"data_parallel_ranks": [0, 1], "adapter": "ddp", "plan": {"dataset_size": 256}}
    for number, rows in enumerate(rows_of_starts):
        manifest = Manifest(world_size=2, attempts=attempts[: number + 1], **facts)
        start = Start(attempt=number, step=attempts[number].step, manifest=manifest)
        for rank in range(2):
            writer = RunWriter(path, rank=rank, seal_steps=10_000, start=start)
            writer.describe(manifest if rank == 0 else None, declared[rank])
            for step, row in sorted((step, row) for (step, owner), row in rows.items() if owner == rank):
                writer.write({"step": step, **row})
            writer.close()
    return Run(path)


def test_a_worker_that_dies_is_no_fault_of_the_data(tmp_path):
    epochs = HEALTHY["distributed sampler"](Size(256, 4, 4, 2), np.random.default_rng(1), np.arange(256))
    rows = {key: row for key, row in sample_rows(epochs, 4).items() if key[1] != 3 or key[0] < 9}
    assert shard_overlap.check(write_run(tmp_path, rows, envs=envs(4, 256))) == []


def test_a_missing_worker_leaves_no_gap_in_parts(tmp_path):
    epochs = HEALTHY["distributed sampler"](Size(256, 4, 4, 1), np.random.default_rng(1), np.arange(256))
    rows = {key: row for key, row in sample_rows(epochs, 4).items() if key[1] != 3}
    present = {rank: env for rank, env in envs(4, 256).items() if rank != 3}
    assert shard_overlap.check(write_run(tmp_path, rows, envs=present, world_size=4)) == []


# -- coverage --------------------------------------------------------------------------------------------------------


def test_rows_of_its_own_under_a_splitting_sampler_leave_parts_unread(tmp_path):
    epochs = shards(256, 2, epochs=1, part=0)
    declared = envs(2, 128, rows_digest=lambda rank: f"rows{rank}")
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared))

    assert (finding.severity, finding.measured, finding.expected, finding.false_alarm_rate) == ("error", 0.5, 1.0, 0.0)
    assert (
        finding.claim == "The samplers split the rows that only some ranks hold into 2 parts, of which 1 part is read."
    )


def test_a_sampler_rank_that_nobody_takes_is_a_gap(tmp_path):
    epochs = shards(256, 4, epochs=1)
    declared = envs(4, 256, num_replicas=8)
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared))

    assert finding.measured == 0.5


def test_rows_that_wander_between_workers_are_not_their_own(tmp_path):
    """Row digests that differ because rows are cached per rank: the samples themselves refute it."""
    epochs = HEALTHY["distributed sampler"](Size(256, 2, 4, 2), np.random.default_rng(1), np.arange(256))
    declared = envs(2, 256, rows_digest=lambda rank: f"rows{rank}")
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared)) == []


def test_local_samplers_on_data_of_each_node_are_silent(tmp_path):
    epochs = shards(256, 4, epochs=2)
    declared = envs(
        4, 128, num_replicas=2, sampler_rank=lambda rank: rank % 2, rows_digest=lambda rank: f"n{rank // 2}"
    )
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared)) == []


def test_sharded_twice_shows_in_samples_that_stay_and_fresh_ones(tmp_path):
    epochs = shards(256, 2, epochs=3, part=0)
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 128, rows_digest="")))

    assert (finding.severity, finding.false_alarm_rate) == ("warning", 1e-6)
    assert finding.evidence["samples_fresh"] > 8
    assert finding.measured == 0.5


def test_a_few_rows_that_two_shards_share_do_not_hide_it(tmp_path):
    epochs = shards(256, 2, epochs=4, part=0)
    for epoch in epochs:
        epoch[1][epoch[1] < 32] -= 1
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 128, rows_digest="")))
    assert (finding.severity, finding.measured) == ("warning", 0.5)
    returned = finding.evidence["samples_returned"]
    assert f"{returned} of {returned}" not in finding.claim


def test_sharded_once_and_shuffled_inside_is_silent(tmp_path):
    epochs = shards(256, 2, epochs=4)
    declared = envs(2, 128, num_replicas=None, sampler="RandomSampler", sampler_rank=None, seed=None)
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared)) == []


def test_batches_that_are_split_again_leave_half_of_every_epoch(tmp_path):
    """Rows wander between workers, for the sampler under the batches is right; nobody declares a size."""
    rng = np.random.default_rng(0)
    epochs = []
    for _ in range(4):
        dealt = sharded(rng.permutation(256), 2)
        epochs.append([order.reshape(-1, 4)[rank::2].ravel() for rank, order in enumerate(dealt)])
    run = write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 256, batch_size=None))
    (finding,) = shard_overlap.check(run)

    assert (finding.severity, finding.measured, finding.false_alarm_rate) == ("warning", 0.5, None)
    assert finding.claim == "The epoch of steps 16-31 consumed 128 of the 256 samples that the samplers deal out."


def test_epochs_that_are_cut_short_are_silent(tmp_path):
    rng = np.random.default_rng(0)
    epochs = [[order[:80] for order in sharded(rng.permutation(256), 2)] for _ in range(4)]
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 256))) == []


def test_shards_of_a_single_step_are_silent(tmp_path):
    """An N-th and the whole of eight rows are both within one step."""
    declared = envs(
        8,
        8,
        num_replicas=None,
        sampler="RandomSampler",
        sampler_rank=None,
        seed=None,
        batch_size=8,
        rows_digest=lambda rank: f"rows{rank}",
    )
    run = write_run(tmp_path, sample_rows(shards(64, 8, epochs=6), 8), envs=declared)
    assert shard_overlap.check(run) == []


def test_rows_of_its_own_read_in_part_are_a_warning_without_a_splitting_sampler(tmp_path):
    epochs = shards(256, 2, epochs=4, part=0, shuffle=False)
    declared = envs(
        2,
        128,
        num_replicas=None,
        sampler="BatchSamplerShard",
        sampler_rank=None,
        seed=None,
        rows_digest=lambda rank: f"rows{rank}",
    )
    (finding,) = shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=declared))

    assert (finding.severity, finding.false_alarm_rate) == ("warning", None)


def test_declared_size_is_held_against_a_complete_epoch(tmp_path):
    epochs = shards(256, 2, epochs=3, part=0, shuffle=False)
    run = write_run(tmp_path, sample_rows(epochs, 4), plan={"dataset_size": 256})
    (finding,) = shard_overlap.check(run)

    assert finding.claim == "The epoch of steps 16-31 consumed 128 of the 256 samples that the plan declares."
    assert (finding.severity, finding.measured, finding.false_alarm_rate) == ("error", 0.5, 0.0)


@pytest.mark.parametrize("drop_last", [False, True])
def test_declared_size_allows_for_padding_and_dropping(tmp_path, drop_last):
    epochs = HEALTHY["distributed sampler"](Size(250, 4, 4, 3), np.random.default_rng(1), np.arange(250))
    if drop_last:
        epochs = [[order[: len(order) // 4 * 4] for order in epoch] for epoch in epochs]
    run = write_run(tmp_path, sample_rows(epochs, 4), envs=envs(4, 250), plan={"dataset_size": 250})
    assert shard_overlap.check(run) == []


def test_samples_that_never_come_again_cannot_tell(tmp_path):
    epochs = [
        [np.arange(1000 * epoch + 500 * rank, 1000 * epoch + 500 * rank + 40) for rank in range(2)]
        for epoch in range(3)
    ]
    with pytest.raises(CannotTell, match="changed on the fly or streamed"):
        shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4)))


def test_flipped_images_are_not_a_gap(tmp_path):
    """Every sample is flipped at random: half of the second epoch was never seen, yet rows wander between workers."""
    rng = np.random.default_rng(1)
    epochs = [
        sharded(order + 1000 * rng.integers(2, size=256), 2) for order in (rng.permutation(256) for _ in range(3))
    ]
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 4), envs=envs(2, 256))) == []


def test_samples_that_move_are_evidence_against_staying():
    stays, chance, block = np.ones(60, dtype=bool), np.full(60, 0.5), np.ones(60, dtype=np.int64)
    assert log_e_of_staying(Returns(stays, chance, block, {})) is not None

    stays[::3] = False
    assert log_e_of_staying(Returns(stays, chance, block, {})) is None


def test_epochs_that_one_worker_of_three_begins_as_before_are_not_judged():
    orders = [np.arange(8) + 8 * worker for worker in range(3)]
    again = [orders[0], orders[1][::-1], orders[2][::-1]]
    shuffled = [order[::-1] for order in orders]
    assert find_returns(samples_of([orders, again], 4)).fresh == {}
    assert find_returns(samples_of([orders, shuffled], 4)).fresh == {1: 0}


def test_drawing_with_replacement_is_recognised():
    rng = np.random.default_rng(1)
    declared = DeclaredSampling({rank: {"dataset_len": 100} for rank in range(2)})
    drawn = samples_of([[rng.integers(100, size=50) for _ in range(2)]], 4)
    dealt = samples_of([[rng.permutation(100)[:50] for _ in range(2)]], 4)

    assert draws_with_replacement(drawn, declared)
    assert not draws_with_replacement(dealt, declared)


# -- the mathematics -------------------------------------------------------------------------------------------------


def brute_chances(samples: Samples):
    """Of each second occurrence, in order: (slot, how many of the samples seen once so far were another worker's)."""
    slots_of: dict[tuple[int, int], list[int]] = {}
    chances = []
    for slot in range(len(samples)):
        key = (int(samples.block[slot]), int(samples.digest[slot]))
        once = [slots[0] for (block, _), slots in slots_of.items() if block == key[0] and len(slots) == 1]
        if samples.in_last_step[slot]:
            once = [first for first in once if not samples.in_first_step[first]]
        earlier_slots = slots_of.setdefault(key, [])
        earlier_slots.append(slot)
        if len(earlier_slots) == 2 and earlier_slots[0] in once:
            num_elsewhere = sum(samples.worker[first] != samples.worker[slot] for first in once)
            chances.append((slot, num_elsewhere / len(once)))
    return [(slot, chance) for slot, chance in chances if not samples.in_first_step[slot]]


@pytest.mark.parametrize("seed", range(8))
def test_chances_equal_counting_by_hand(seed):
    rng = np.random.default_rng(seed)
    size = Size(40, int(rng.choice([2, 3, 5])), int(rng.choice([1, 2, 4])), 1)
    content = with_copies(size, rng, 0.5)
    samples = samples_of([[content[rng.integers(40, size=20)] for _ in range(size.workers)]], size.batch)
    repeats = find_repeats(samples, SeenOnce(samples, one_data_set=False))

    assert [(slot, pytest.approx(chance)) for slot, chance in brute_chances(samples)] == list(
        zip(repeats.slot.tolist(), repeats.chance.tolist(), strict=True)
    )


@pytest.mark.parametrize("one_data_set", [False, True])
def test_evidence_averages_to_one_over_all_arrangements(one_data_set):
    """The null hypothesis itself, exhaustively: every arrangement of these samples over four steps and two
    workers.
    """
    evidence = {3.0: [], 1e4: []}
    for arrangement in sorted(set(permutations([1, 1, 1, 1, 2, 2, 2, 3]))):
        samples = samples_of([[np.array(arrangement[0::2]), np.array(arrangement[1::2])]], 1)
        repeats = find_repeats(samples, SeenOnce(samples, one_data_set=one_data_set))
        trials = np.ones(len(repeats), dtype=np.int64)
        for odds, values in evidence.items():
            steps = log_likelihood_steps(repeats.across_workers.astype(np.int64), trials, repeats.chance, odds=odds)
            values.append(float(np.exp(steps.sum())))

    for values in evidence.values():
        assert len(values) == 280
        assert np.mean(values) == pytest.approx(1.0, abs=1e-9)
        assert max(values) > 2


def test_fixed_shards_with_unlucky_copies_stay_silent(tmp_path):
    """Eight equal pairs that all fell on two workers, met in each of forty epochs: the coincidence counts once."""
    rng = np.random.default_rng(1)
    owned = [np.arange(100), np.concatenate([np.arange(8), np.arange(200, 292)])]
    epochs = [[rng.permutation(rows) for rows in owned] for _ in range(40)]
    assert shard_overlap.check(write_run(tmp_path, sample_rows(epochs, 10))) == []
