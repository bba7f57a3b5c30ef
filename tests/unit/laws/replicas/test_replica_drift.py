"""replica-drift: replicas that hold other bits are named with step and parameter; shards are not replicas."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.healthy_run import PARAMS, healthy_rows, rank_env, write_run

import trueline
from trueline.judge.series.sampled_updates import SampledUpdates, Slice
from trueline.laws.replicas import replica_drift, states_alike
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import Attempt


def changed(rows, column, index, *, ranks, step_first):
    """The rows with one digest of ``column`` changed on ``ranks``, differently on each, from ``step_first`` on."""
    for (step, rank), row in rows.items():
        if rank in ranks and step >= step_first:
            row[column] = row[column].copy()
            row[column][index] += np.uint64(1 + rank)
    return rows


def test_one_replica_of_four_is_named(tmp_path):
    rows = changed(healthy_rows(4, 10), "param_digests", 3, ranks=[2], step_first=5)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks) == ("error", (2,))
    assert (finding.step_first, finding.step_last) == (5, 9)
    assert finding.sites == ("5.0/r2/param/head#0:out0",)
    assert finding.claim == (
        "Rank 2 holds other values than the replicas of 1 parameter, equal before the update of step 4 and different "
        "before that of step 5: head."
    )
    assert (finding.measured, finding.false_alarm_rate) == (1.0, 0.0)


def test_two_replicas_are_both_named(tmp_path):
    rows = changed(healthy_rows(2, 4), "param_digests", 0, ranks=[1], step_first=0)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))

    assert finding.ranks == (0, 1)
    assert finding.claim.startswith("Ranks 0 and 1 hold different values of 1 parameter")
    assert "same weights" in finding.next[0]


def test_all_parameters_are_counted_and_the_first_named(tmp_path):
    rows = healthy_rows(4, 3)
    for index in range(len(PARAMS)):
        rows = changed(rows, "param_digests", index, ranks=[1], step_first=1)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))

    assert finding.measured == 4.0
    assert finding.evidence["names"] == list(PARAMS)


def test_parameters_that_part_later_are_named_beside_the_first(tmp_path):
    """Adam's first step hides a factor between gradients, and bfloat16 a small update: norms part later."""
    rows = changed(healthy_rows(2, 9), "param_digests", 3, ranks=[1], step_first=1)
    rows = changed(rows, "param_digests", 2, ranks=[1], step_first=5)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert finding.evidence["names"] == ["head"]
    assert finding.claim.endswith("different before that of step 1: head; of 1 more by step 8: blocks.0.bias.")


def test_the_rank_is_named_by_the_first_parameter_that_differs(tmp_path):
    rows = changed(healthy_rows(4, 3), "param_digests", 1, ranks=[3], step_first=0)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert finding.ranks == (3,)


def test_buffers_alone_are_a_warning(tmp_path):
    rows = changed(healthy_rows(2, 4), "buffer_digests", 0, ranks=[1], step_first=1)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.step_first) == ("warning", 1)
    assert finding.sites[0] == "1.0/r0/buffer/norm.running_mean#0:out0"
    assert (finding.evidence["kind"], "SyncBatchNorm" in finding.next[0]) == (["buffers", "statistics"], True)


def test_a_buffer_that_code_writes_has_no_advice_of_batch_normalisation(tmp_path):
    """The bias of a router, which counts of tokens move."""
    rows = changed(healthy_rows(2, 4), "buffer_digests", 0, ranks=[1], step_first=1)
    envs = {rank: rank_env(rank, 2, buffers=["gate.expert_bias", "norm.running_mean"]) for rank in range(2)}
    run = write_run(tmp_path, rows, envs=envs)
    (finding,) = replica_drift.check(run)
    assert finding.evidence["kind"] == ["buffers", "by-code"]
    verdict = trueline.diagnose(run).verdicts[0]
    assert verdict.cause == "buffer-written-by-each-rank"
    assert "gate.expert_bias" in finding.next[0]
    assert not [line for line in (verdict.says, *verdict.next) if "Norm" in line or "statistics" in line]


def test_only_steps_with_digests_count(tmp_path):
    rows = changed(healthy_rows(2, 9), "param_digests", 0, ranks=[1], step_first=3)
    for (step, _), row in rows.items():
        if step % 4:
            del row["param_digests"], row["buffer_digests"]
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert finding.step_first == 4
    assert "equal before the update of step 0 and different before that of step 4" in finding.claim
    assert (finding.evidence["last_equal"], finding.evidence["first_different"]) == (0, 4)


def test_a_difference_at_the_first_look_has_no_date(tmp_path):
    rows = changed(healthy_rows(2, 9), "param_digests", 0, ranks=[1], step_first=0)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert "different at the first comparison, before the update of step 0" in finding.claim
    assert finding.evidence["last_equal"] is None


def test_a_rank_that_was_not_seen_to_be_equal_is_not_said_to_have_been(tmp_path):
    rows = changed(healthy_rows(3, 9), "param_digests", 0, ranks=[2], step_first=6)
    for step in (3, 4, 5):
        del rows[step, 2]["param_digests"]
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert (finding.evidence["last_equal"], finding.evidence["first_different"]) == (2, 6)


def closed_with(rows, *digests, at):
    for rank, digest in enumerate(digests):
        rows[at[rank], rank]["closing_digests"] = np.full(len(PARAMS), digest, dtype=np.uint64)
    return rows


def test_a_difference_seen_only_at_the_end_is_told_and_accuses_no_update(tmp_path):
    rows = closed_with(healthy_rows(2, 6), 1, 2, at=(5, 5))
    for (step, _), row in rows.items():
        if step > 3:
            del row["param_digests"]
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert finding.severity == "info"
    assert "equal before the update of step 3 and different when watching ended, after step 5" in finding.claim


def test_ranks_that_ended_at_other_steps_or_equal_are_silent_at_the_end(tmp_path):
    assert replica_drift.check(write_run(tmp_path / "equal", closed_with(healthy_rows(2, 6), 3, 3, at=(5, 5)))) == []
    assert replica_drift.check(write_run(tmp_path / "apart", closed_with(healthy_rows(2, 6), 1, 2, at=(5, 4)))) == []


def test_drift_that_was_seen_before_the_end_is_told_once(tmp_path):
    rows = closed_with(changed(healthy_rows(2, 6), "param_digests", 0, ranks=[1], step_first=2), 1, 2, at=(5, 5))
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert (finding.severity, finding.step_first) == ("error", 2)


def sampled_slice(rank, step, weight, state, lr=1e-3):
    """Two elements of the head around an update of AdamW."""
    before = {"param": np.array([weight, 2.0]), "grad": np.ones(2), "exp_avg": np.array([state, 0.5])}
    dtypes = dict.fromkeys(before, "float32")
    settings = {"betas": [0.9, 0.999], "lr": lr}
    return Slice(step, rank, "head", "AdamW", "AdamW", settings, before, {}, {}, {}, dtypes, 2, True, True, True, False)


@pytest.mark.parametrize(
    ("step", "change", "alike"),
    [
        (6, {"weight": 1.5}, "states-equal"),
        (4, {"state": 0.3}, "states-apart"),
        (6, {"weight": 1.5, "state": 0.3}, None),  # what came first is open
        (6, {"weight": 1 + 2**-23}, None),  # what updates round
        (6, {"weight": 1.5, "lr": 2e-3}, None),
        (704, {"weight": 1.5}, None),  # states forgot what was in them
    ],
)
def test_states_tell_updates_that_differ_from_weights_that_something_else_wrote(
    tmp_path, monkeypatch, step, change, alike
):
    slices = [
        sampled_slice(rank, step, **{"weight": 1.0, "state": 0.2} | (change if rank == 2 else {})) for rank in (0, 2)
    ]
    monkeypatch.setattr(states_alike, "sampled_updates", lambda run: SampledUpdates(tuple(slices), {}, {}, ()))
    rows = changed(healthy_rows(4, 10), "param_digests", 3, ranks=[2], step_first=5)
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert finding.evidence["kind"] == ["later", "one", *([alike] if alike else [])]
    assert finding.claim.count(f"step {step}") == (alike is not None) + (step == 4)
    assert finding.next[0].startswith("Give every rank the same state of the optimizer") == (alike == "states-apart")


@pytest.mark.parametrize(
    ("updates", "counts", "kinds", "sentence"),
    [
        (0, (1, 1), ["from-the-start"], "before the update of step 0: head."),
        (None, (1, 1), ["from-the-start"], "before the update of step 0: head."),
        (120, (120, 120), ["begun-before"], "Updates had been made before that."),
        (120, (120, 1), ["begun-before", "counts-apart"], "optimizers had counted 120 on rank 0 and 1 on rank 2."),
    ],
)
def test_what_was_first_seen_after_updates_need_not_come_from_the_start(
    tmp_path, monkeypatch, updates, counts, kinds, sentence
):
    slices = [
        replace(sampled_slice(rank, 3, weight=1.0, state=0.2), numbers_before={"step": float(count)})
        for rank, count in zip((0, 2), counts, strict=True)
    ]
    monkeypatch.setattr(states_alike, "sampled_updates", lambda run: SampledUpdates(tuple(slices), {}, {}, ()))
    rows = changed(healthy_rows(4, 4), "param_digests", 3, ranks=[2], step_first=0)
    run = write_run(tmp_path, rows, attempts=[Attempt(step=0, updates=updates)])
    (finding,) = replica_drift.check(run)
    assert [kind for kind in finding.evidence["kind"] if kind != "one"] == kinds
    assert finding.claim.endswith(sentence)


def test_shards_are_not_compared_but_their_replicas_are(tmp_path):
    rows = changed(healthy_rows(4, 4), "param_digests", 0, ranks=[1, 3], step_first=0)
    sharded = {rank: rank_env(rank, 4, replica_key=f"shard {rank % 2} of 2") for rank in range(4)}
    (finding,) = replica_drift.check(write_run(tmp_path, rows, envs=sharded))
    assert finding.ranks == (1, 3)

    for (_, rank), row in rows.items():
        row["param_digests"] = np.full(4, rank % 2, dtype=np.uint64)
    assert replica_drift.check(write_run(tmp_path / "healthy", rows, envs=sharded)) == []


def test_buffers_are_compared_between_shards(tmp_path):
    whole = {rank: rank_env(rank, 3, replica_key=f"shard {rank} of 3", buffer_key="all") for rank in range(3)}
    rows = changed(healthy_rows(3, 4), "param_digests", 0, ranks=[0, 1, 2], step_first=0)
    assert replica_drift.check(write_run(tmp_path / "healthy", rows, envs=whole)) == []

    rows = changed(rows, "buffer_digests", 0, ranks=[1], step_first=2)
    (finding,) = replica_drift.check(write_run(tmp_path / "drifted", rows, envs=whole))
    assert (finding.severity, finding.ranks, finding.step_first) == ("warning", (1,), 2)

    for row in rows.values():
        del row["buffer_digests"]
    with pytest.raises(CannotTell, match="own shard"):
        replica_drift.check(write_run(tmp_path / "without", rows, envs=whole))


def test_two_sets_of_replicas_make_one_finding(tmp_path):
    rows = changed(healthy_rows(4, 4), "param_digests", 0, ranks=[0, 1, 2, 3], step_first=0)
    sharded = {rank: rank_env(rank, 4, replica_key=f"shard {rank % 2} of 2") for rank in range(4)}
    (finding,) = replica_drift.check(write_run(tmp_path, rows, envs=sharded))
    assert finding.ranks == (0, 1, 2, 3)


def test_another_number_of_parameters_is_a_difference(tmp_path):
    rows = healthy_rows(4, 2)
    rows[1, 2]["param_digests"] = rows[1, 2]["param_digests"][:3]
    (finding,) = replica_drift.check(write_run(tmp_path, rows))
    assert (finding.ranks, finding.step_first) == ((2,), 1)


def test_frozen_parameters_that_agree_are_silent(tmp_path):
    rows = healthy_rows(3, 6)
    for row in rows.values():
        row["param_digests"][0] = 5
    assert replica_drift.check(write_run(tmp_path, rows)) == []


def test_a_rank_that_died_early_is_silent(tmp_path):
    rows = {key: row for key, row in healthy_rows(3, 8).items() if key[1] != 2 or key[0] < 3}
    assert replica_drift.check(write_run(tmp_path, rows)) == []


def test_plain_shards_cannot_tell(tmp_path):
    sharded = {rank: rank_env(rank, 2, replica_key=f"shard {rank} of 2") for rank in range(2)}
    with pytest.raises(CannotTell, match="own shard"):
        replica_drift.check(write_run(tmp_path, healthy_rows(2, 2), envs=sharded))


def test_no_digests_cannot_tell(tmp_path):
    rows = {key: {"loss": row["loss"]} for key, row in healthy_rows(2, 2).items()}
    with pytest.raises(CannotTell, match="digests"):
        replica_drift.check(write_run(tmp_path, rows))
