"""What of two Runs is compared with what, and values of several ranks merged, on Runs that are made by hand."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch

from trueline.comparison.arrange import arrange
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.comparison.merge.positions import OF_SHARES
from trueline.comparison.prefilter import differing_steps
from trueline.judge.recorded.step_values import read_rank_step
from trueline.judge.recorded.steps import require_statistics
from trueline.schema.columns.records import STAT_NAMES, StepRecords, TensorRecord
from trueline.schema.errors import CannotTell, InputError, RunError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.store.reader import Run
from trueline.store.records.numbers import numbers
from trueline.store.records.record_summary import list_sites
from trueline.store.records.tensor_files import TensorValue
from trueline.store.writer import RunWriter


def row(name, array, *, phase="fwd", slot="out0", kind="module", module="LM", micro=0, call=0, mesh=None, args=None):
    """One value that a rank saw; float32 unless it is of integers."""
    array = np.asarray(array)
    array = array if array.dtype.kind == "i" else array.astype(np.float32)
    return {"name": name, "array": array, "phase": phase, "slot": slot, "kind": kind, "module": module,
            "micro": micro, "call": call, "mesh": mesh, "args": args, "same_as": None}  # fmt: skip


def record(path, ranks, *, steps=(0,), adapter="ddp", workers=None, world=None, plan=None, notes=()):
    """A Run of what each rank saw at every step, values included; ``ranks`` is one list of rows a rank."""
    for rank, rows in ranks.items():
        writer = RunWriter(path, rank=rank)
        manifest = Manifest(
            world_size=world or len(ranks),
            data_parallel_ranks=sorted(ranks) if workers is None else workers,
            adapter=adapter,
            plan=plan or {},
            notes=list(notes),
        )
        writer.describe(manifest if rank == min(ranks) else None, RankEnv(rank=rank))
        for step in steps:
            write(writer, step, rows)
        writer.close()
    return Run(path)


def write(writer, step, rows):
    keys = [f"{place}.{row['name']}" for place, row in enumerate(rows)]
    for key, each in zip(keys, rows, strict=True):
        array = np.ascontiguousarray(each["array"])
        dtype = {"f": "F32", "i": "I64"}[array.dtype.kind]
        writer.write(TensorRecord(step, key, dtype, array.shape, memoryview(array.reshape(-1).view(np.uint8))))
    columns = {
        name: [each[name] for each in rows]
        for name in ("name", "phase", "slot", "kind", "module", "micro", "call", "args")
    }
    columns |= {
        "same_as": [each["same_as"] for each in rows],
        "flags": ["pending_sum" if each["mesh"] and each["mesh"]["placements"][0] == "P(sum)" else "" for each in rows],
        "api": [f"my.{each['name'].rpartition('.')[2]}" for each in rows],
        "dtype": ["float32" if each["array"].dtype.kind == "f" else "int64" for each in rows],
        "shape": [each["array"].shape for each in rows],
        "numel": [each["array"].size for each in rows],
        "mesh": [None if each["mesh"] is None else json.dumps(each["mesh"]) for each in rows],
        "tensor": keys,
    }
    measured = [place for place, each in enumerate(rows) if each["same_as"] is None]
    stats_MS = np.array([statistics(rows[place]["array"]) for place in measured])
    bits_M = np.array([zlib.crc32(rows[place]["array"].tobytes()) for place in measured], dtype=np.uint64)
    writer.write(StepRecords(step, columns, np.array(measured, dtype=np.int32), stats_MS, bits_M))


def statistics(array):
    x = array.astype(np.float64)
    told = {"zero": (x == 0).sum(), "min": x.min(), "max": x.max(), "sum": x.sum(), "sum_sq": (x**2).sum()}
    return [float(told.get(name, 0)) for name in STAT_NAMES]


def merged(run, ref, **chosen):
    """Values of both sides of the first arrangement, by phase and name."""
    sides = arrange(run, ref, **chosen)[0].read().sides
    return [{(value.site.phase, value.site.name): value for value in side.values} for side in sides]


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


# -- what is compared ----------------------------------------------------------------------------------------------


def test_common_steps_are_compared_rank_by_rank_in_order(tmp_path):
    rows = [row("a", draw(2, 3))]
    run = record(tmp_path / "run", {0: rows, 1: rows}, steps=(3, 5, 9))
    ref = record(tmp_path / "ref", {0: rows, 1: rows}, steps=(2, 5, 9))
    places = [(each.step, each.rank, each.note) for each in arrange(run, ref)]
    assert places == [(5, 0, ""), (5, 1, ""), (9, 0, ""), (9, 1, "")]
    assert [(each.step, each.rank) for each in arrange(run, ref, steps=[9, 3], ranks=[1])] == [(9, 1)]
    mine, theirs = arrange(run, ref)[1].read().sides
    assert (mine.label, theirs.label, mine.ranks) == (run.path, ref.path, (1,))
    assert np.array_equal(mine.values[0].load(), rows[0]["array"])


def test_what_there_is_nothing_of_is_said_in_one_sentence(tmp_path):
    rows = [row("a", draw(2))]
    run = record(tmp_path / "run", {0: rows}, steps=(0, 1))
    ref = record(tmp_path / "ref", {0: rows}, steps=(2,))
    empty = record(tmp_path / "empty", {0: rows}, steps=())
    with pytest.raises(CannotTell, match=r"'.*run' has steps 0, 1, '.*ref' has 2. Record the same steps."):
        arrange(run, ref)
    with pytest.raises(CannotTell, match="None of the steps 5 that were asked for was recorded in both"):
        arrange(run, run, steps=[5])
    with pytest.raises(CannotTell, match=r"No step was recorded in the reference '.*empty'"):
        arrange(run, empty)
    with pytest.raises(InputError, match=r"None of the ranks 3, 4 was recorded: both runs have ranks 0."):
        arrange(run, run, ranks=[4, 3])


def test_recorded_steps_that_are_damaged_are_named(tmp_path):
    rows = [row("a", draw(2))]
    run = record(tmp_path / "run", {0: rows})
    record(tmp_path / "ref", {0: rows})
    (part,) = (tmp_path / "ref" / "records").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(CannotTell, match=rf"No recorded step of the reference .*{part.name}: its 100 bytes .* again"):
        arrange(run, Run(tmp_path / "ref"))
    with pytest.raises(CannotTell, match=rf"no recorded step can be read: records/.*{part.name}"):
        require_statistics(Run(tmp_path / "ref"))
    with pytest.raises(RunError, match=rf"has no recorded steps, .*{part.name}.* Copy the Run again"):
        list_sites(Run(tmp_path / "ref"), "*")


def test_damage_is_told_where_the_steps_that_are_left_are_not_common(tmp_path):
    rows = [row("a", draw(2))]
    run = record(tmp_path / "run", {0: rows}, steps=(0,))
    ref = tmp_path / "ref"
    writer = RunWriter(ref, rank=0, seal_steps=1)
    writer.describe(Manifest(), RankEnv())
    write(writer, 0, rows)
    write(writer, 1, rows)
    writer.close()
    first, _ = sorted((ref / "records").rglob("*.parquet"))
    first.write_bytes(b"")
    with pytest.raises(CannotTell, match=rf"has 1. Record the same steps. '.*ref' is damaged: .*{first.name}"):
        arrange(run, Run(ref))


def test_ranks_cannot_be_chosen_of_runs_that_are_merged(tmp_path):
    rows = [row("a", draw(2))]
    run = record(tmp_path / "run", {0: rows, 1: rows})
    ref = record(tmp_path / "ref", {0: rows})
    with pytest.raises(InputError, match="Ranks 1 cannot be compared one by one: the run has ranks 0, 1 of 2"):
        arrange(run, ref, ranks=[1])


def test_it_cannot_be_told_who_shares_the_batch_where_nothing_says_so(tmp_path):
    rows = [row("a", draw(2))]
    run = record(tmp_path / "run", dict.fromkeys(range(4), rows), workers=[0], adapter="")
    ref = record(tmp_path / "ref", {0: rows})
    with pytest.raises(CannotTell, match="not known which of them share the batch and which hold one model together"):
        arrange(run, ref)[0].read()


def test_runs_with_other_meshes_are_merged_also_where_their_ranks_are_the_same(tmp_path):
    whole = draw(4, 3)
    cut = {
        rank: [row("w", whole[2 * rank : 2 * rank + 2], kind="param", phase="param", mesh=mesh(rank))]
        for rank in (0, 1)
    }
    run = record(tmp_path / "run", cut, adapter="fsdp2")
    ref = record(tmp_path / "ref", {rank: [row("w", whole, kind="param", phase="param")] for rank in (0, 1)})
    (arrangement,) = arrange(run, ref)
    assert (arrangement.rank, arrangement.note) == (
        None,
        "their tensors are sharded differently: all ranks of each run are merged",
    )
    mine, theirs = (side["param", "w"] for side in merged(run, ref))
    assert mine.shape == theirs.shape == (4, 3)
    assert np.array_equal(mine.load(), whole)
    assert (mine.stats.sum, mine.stats.max) == (pytest.approx(theirs.stats.sum), theirs.stats.max)
    assert mine.ranks == (0, 1)


def mesh(rank, *, placement="S(0)", shape=(4, 3), offsets=None):
    return {
        "mesh": [2],
        "names": ["shard"],
        "coordinate": [rank],
        "placements": [placement],
        "shape": list(shape),
        "offsets": [2 * rank, 0] if offsets is None else offsets,
    }


# -- how parts are merged ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_go_side_by_side_along_the_dim_that_the_other_run_shows(tmp_path, dim):
    whole = draw(4, 6, 8)
    parts = np.split(whole, 2, axis=dim)
    run = record(tmp_path / "run", {rank: [row("a", part)] for rank, part in enumerate(parts)})
    mine, theirs = merged(run, record(tmp_path / "ref", {0: [row("a", whole)]}))
    value = mine["fwd", "a"]
    assert np.array_equal(value.load(), whole)
    assert (value.stats.numel, value.stats.min, value.stats.max) == (whole.size, whole.min(), whole.max())
    assert value.stats.sum_sq == pytest.approx((whole.astype(np.float64) ** 2).sum())
    assert value.stats.fingerprint is None
    assert theirs["fwd", "a"].shape == value.shape


@pytest.mark.parametrize("dealt", [True, False])
def test_samples_that_were_dealt_out_in_turn_are_compared_in_the_order_of_the_other_run(tmp_path, dealt):
    ids = np.arange(32).reshape(8, 4)
    hidden, flat = draw(8, 4, 3), draw(8 * 3, 5)  # of flat, three rows belong to each sample
    cut = (lambda x, rank: x[rank::2]) if dealt else (lambda x, rank: np.split(x, 2)[rank])
    ranks = {
        rank: [
            row("LM", cut(ids, rank), slot="in0", module=""),
            row("a", cut(hidden, rank)),
            row("b", cut(flat.reshape(8, 3, 5), rank).reshape(-1, 5)),
        ]
        for rank in (0, 1)
    }
    ref = [row("LM", ids, slot="in0", module=""), row("a", hidden), row("b", flat)]
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: ref}))
    for name, whole in (("LM", ids), ("a", hidden), ("b", flat)):
        assert np.array_equal(mine["fwd", name].load(), whole)


def test_samples_that_are_not_the_same_stay_in_the_order_of_their_ranks(tmp_path):
    ids, other = np.arange(32).reshape(8, 4), np.arange(1, 33).reshape(8, 4)
    ranks = {rank: [row("LM", ids[rank::2], slot="in0", module="")] for rank in (0, 1)}
    ref = [row("LM", other, slot="in0", module="")]
    ranks = {rank: [*rows, row("a", draw(2, 2))] for rank, rows in ranks.items()}
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: [*ref, row("a", draw(2, 2))]}))
    assert np.array_equal(mine["fwd", "LM"].load(), np.concatenate([ids[0::2], ids[1::2]]))


def test_what_all_ranks_share_is_kept_once(tmp_path):
    weight = draw(4, 4)
    ranks = {
        rank: [row("a", draw(2, 4, seed=rank)), row("a.linear", weight, slot="in1", kind="op", module="a")]
        for rank in (0, 1)
    }
    whole = np.concatenate([ranks[0][0]["array"], ranks[1][0]["array"]])
    ref = [row("a", whole), row("a.linear", weight, slot="in1", kind="op", module="a")]
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: ref}))
    assert np.array_equal(mine["fwd", "a.linear"].load(), weight)
    assert mine["fwd", "a.linear"].stats.fingerprint == zlib.crc32(weight.tobytes())
    assert np.array_equal(mine["fwd", "a"].load(), whole)


def test_gradients_of_what_all_share_are_summed_and_those_of_the_batch_lie_side_by_side(tmp_path):
    ranks = {
        rank: [
            row("a", draw(2, 3, seed=rank)),
            row("a", draw(2, 3, seed=10 + rank), phase="bwd"),
            row("w", draw(3, 3, seed=20 + rank), phase="bwd", kind="param", slot="grad"),
        ]
        for rank in range(4)
    }
    ref = [
        row("a", draw(8, 3)),
        row("a", draw(8, 3), phase="bwd"),
        row("w", draw(3, 3), phase="bwd", kind="param", slot="grad"),
    ]
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: ref}))
    side_by_side = np.concatenate([ranks[rank][1]["array"] for rank in range(4)]) / 4
    total = sum(ranks[rank][2]["array"].astype(np.float64) for rank in range(4)) / 4
    gradient, of_weight = mine["bwd", "a"], mine["bwd", "w"]
    assert np.allclose(gradient.load(), side_by_side, rtol=1e-6)
    assert gradient.stats.sum_sq == pytest.approx((side_by_side.astype(np.float64) ** 2).sum(), rel=1e-6)
    assert (gradient.stats.min, gradient.scale) == (pytest.approx(side_by_side.min()), 0.25)
    assert np.allclose(of_weight.load(), total, rtol=1e-6)
    assert of_weight.stats is None
    assert "a sum of 4 terms" in of_weight.note


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_become_their_mean_or_sum_whichever_the_other_run_has(tmp_path, reduction):
    losses = [1.5, 2.5, 4.0, 8.0]
    ranks = {
        rank: [row("m", draw(2, 2, seed=rank)), row("loss", loss, module="", kind="op")]
        for rank, loss in enumerate(losses)
    }
    wanted = np.mean(losses) if reduction == "mean" else np.sum(losses)
    ref = [row("m", draw(8, 2)), row("loss", wanted * 1.001, module="", kind="op")]
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: ref}))
    stats = mine["fwd", "loss"].stats
    assert (stats.min, stats.max, stats.sum, stats.numel) == (wanted, wanted, wanted, 1)


def test_equal_counts_of_shares_become_the_count_that_the_other_run_has(tmp_path):
    ranks = {
        rank: [row("m", draw(2, 2, seed=rank)), row("count", 60, module="", kind="op"), row("loss", 1.5 + rank)]
        for rank in range(2)
    }
    ref = [row("m", draw(4, 2)), row("count", 120, module="", kind="op"), row("loss", 2.0)]
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: ref}))
    assert mine["fwd", "count"].stats.sum == 120
    assert mine["fwd", "loss"].stats.sum == 2.0


def test_members_of_a_team_hold_the_same_or_parts_that_the_other_run_has_whole(tmp_path):
    same, whole = draw(2, 6), draw(2, 8, seed=5)
    ranks = {
        rank: [row("a", same), row("b", part), row("c", draw(2, 6, seed=rank))]
        for rank, part in enumerate(np.split(whole, 2, axis=1))
    }
    run = record(tmp_path / "run", ranks, adapter="sharded", workers=[0])
    mine, _ = merged(run, record(tmp_path / "ref", {0: [row("a", same), row("b", whole), row("c", draw(2, 6))]}))
    assert np.array_equal(mine["fwd", "a"].load(), same)
    assert np.array_equal(mine["fwd", "b"].load(), whole)
    assert (mine["fwd", "c"].stats, mine["fwd", "c"].load) == (None, None)
    assert "ranks 0, 1 hold one model together and have different values here" in mine["fwd", "c"].note


def test_replicas_that_differ_are_shown_once_and_named(tmp_path):
    weights = [draw(2, 2), draw(2, 2), draw(2, 2, seed=9)]
    ranks = {
        rank: [row("a", draw(2, 2, seed=rank)), row("w", weight, phase="param", kind="param", slot="value")]
        for rank, weight in enumerate(weights)
    }
    ref = [row("a", draw(6, 2)), row("w", weights[0], phase="param", kind="param", slot="value")]
    mine, _ = merged(record(tmp_path / "run", ranks), record(tmp_path / "ref", {0: ref}))
    assert mine["param", "w"].note == "replicas differ: rank 2 (shown) from rank 0, 1"
    assert np.array_equal(mine["param", "w"].load(), weights[2])


def test_calls_that_use_replicas_that_differ_show_the_odd_one_too(tmp_path):
    weights = [draw(2, 2), draw(2, 2), draw(2, 2, seed=9)]
    ranks = {
        rank: [
            row("a", draw(2, 2, seed=rank)),
            row("a.linear", weight, kind="op", module="a", slot="in1"),
            row("a.weight", weight, phase="param", kind="param", slot="value"),
        ]
        for rank, weight in enumerate(weights)
    }
    mine, _ = merged(
        record(tmp_path / "run", ranks),
        record(tmp_path / "ref", {0: [row("a", draw(6, 2)), *ranks[0][1:]]}),
    )
    assert np.array_equal(mine["fwd", "a.linear"].load(), weights[2])
    assert mine["fwd", "a.linear"].note == mine["param", "a.weight"].note
    assert mine["param", "a.weight"].root == mine["fwd", "a.linear"].index


def test_what_waits_for_a_collective_is_what_is_seen_after_it(tmp_path):
    whole = draw(4, 3)
    parts = {rank: draw(4, 3, seed=rank) for rank in (0, 1)}
    ranks = {
        rank: [row("a", part, mesh=mesh(rank, placement="P(sum)", offsets=[0, 0])), row("b", whole, slot="in0")]
        for rank, part in parts.items()
    }
    run = record(tmp_path / "run", ranks, adapter="sharded", workers=[0])
    ref = [row("a", whole), {**row("b", whole, slot="in0"), "same_as": 0}]
    mine, _ = merged(run, record(tmp_path / "ref", {0: ref}))
    assert np.array_equal(mine["fwd", "a"].load(), whole)
    assert mine["fwd", "a"].note == "the value after the collective, as seen in b"


def test_parts_of_a_sum_are_never_merged(tmp_path):
    ranks = {
        rank: [row("a", draw(4, 3, seed=rank), mesh=mesh(rank, placement="P(sum)", offsets=[0, 0]))] for rank in (0, 1)
    }
    run = record(tmp_path / "run", ranks, adapter="sharded", workers=[0])
    mine, _ = merged(run, record(tmp_path / "ref", {0: [row("a", draw(4, 3))]}))
    value = mine["fwd", "a"]
    assert (value.stats, value.load) == (None, None)
    assert "waits for a sum over ranks" in value.note


def test_stages_of_a_pipeline_follow_each_other_by_name(tmp_path):
    ranks = {
        rank: [row(f"layers.{rank}", draw(2, 2, seed=rank)), row(f"layers.{rank}", draw(2, 2, seed=rank), phase="bwd"),
               row(f"layers.{rank}.w", draw(2, 2, seed=rank), phase="param", kind="param", slot="value")]
        for rank in range(3)
    }  # fmt: skip
    order = [
        ("fwd", 0),
        ("fwd", 1),
        ("fwd", 2),
        ("bwd", 2),
        ("bwd", 1),
        ("bwd", 0),
        ("param", 0),
        ("param", 1),
        ("param", 2),
    ]
    by_place = {(each["phase"], rank): each for rank, rows in ranks.items() for each in rows}
    run = record(tmp_path / "run", ranks, adapter="sharded", workers=[0])
    ref = record(tmp_path / "ref", {0: [by_place[place] for place in order]})
    sides = arrange(run, ref)[0].read().sides
    names = [[(value.site.phase, value.site.name) for value in side.values] for side in sides]
    assert names[0] == names[1]
    assert [value.ranks for value in sides[0].values[:3]] == [(0,), (1,), (2,)]
    assert not any(pair.reason for pair in align(*sides, NameMap()).pairs)


def test_micro_batches_of_one_rank_are_merged_where_the_other_run_has_another_number(tmp_path):
    whole = draw(6, 2)
    parts = [row("a", part, micro=micro) for micro, part in enumerate(np.split(whole, 3))]
    ends = [row("w", draw(2, 2), phase="param", kind="param", slot="value", micro=micro) for micro in (2, 0)]
    run = record(tmp_path / "run", {0: [*parts, ends[0]]})
    ref = record(tmp_path / "ref", {0: [row("a", whole), ends[1]]})
    (arrangement,) = arrange(run, ref)
    assert arrangement.rank == 0
    mine, _ = merged(run, ref)
    assert np.array_equal(mine["fwd", "a"].load(), whole)
    assert len(mine) == 2


def test_positions_are_compared_where_both_runs_have_the_same_shares_only(tmp_path):
    def ranked(expert, micro):
        order = np.argsort(expert, kind="stable")
        slots = {"in0": expert, "out0": expert[order], "out1": order}
        return [row("m.sort", each, slot=slot, kind="op", module="m", micro=micro) for slot, each in slots.items()]

    whole = np.array([2, 0, 1, 0, 3, 1, 2, 0])
    halves = [*ranked(whole[:4], 0), *ranked(whole[4:], 1)]
    run = record(tmp_path / "run", {0: halves})
    mine, _ = arrange(run, record(tmp_path / "ref", {0: ranked(whole, 0)}))[0].read().sides
    notes = {value.site.slot: value.note for value in mine.values}
    assert notes == {"in0": "", "out0": "", "out1": OF_SHARES}
    mine, theirs = arrange(run, record(tmp_path / "again", {0: halves}))[0].read().sides
    assert {value.note for side in (mine, theirs) for value in side.values} == {""}


def test_values_of_which_only_the_first_rows_were_stored_are_not_put_together(tmp_path):
    whole = draw(4, 2)
    run = record(
        tmp_path / "run",
        {rank: [row("a", part)] for rank, part in enumerate(np.split(whole, 2))},
        plan={"first_rows": 1},
    )
    mine, _ = merged(run, record(tmp_path / "ref", {0: [row("a", whole)]}))
    assert mine["fwd", "a"].load is None
    assert mine["fwd", "a"].stats.numel == 8


def test_a_parameter_at_the_update_is_known_where_a_call_used_it(tmp_path):
    weight, ones = draw(4, 4), np.ones(4)
    rows = [
        row("a.norm", ones, kind="op", module="a.n", slot="weight"),
        row("a.linear", weight, kind="op", module="a", slot="in1"),
        row("b.linear", draw(4, 4, seed=3), kind="op", module="b", slot="in1"),
        row("a.weight", weight, phase="param", kind="param", slot="value"),
        row("b.weight", draw(4, 4, seed=4), phase="param", kind="param", slot="value"),
        row("position", draw(4, 4, seed=3), phase="param", kind="param", slot="value"),
        row("c.weight", ones, phase="param", kind="param", slot="value"),
        {**row("SGD.add_", weight, phase="opt", kind="op", module="SGD", slot="in0"), "same_as": 3},
    ]
    run = record(tmp_path / "run", {0: rows})
    mine, _ = arrange(run, run)[0].read().sides
    assert [value.root for value in mine.values] == [0, 1, 2, 1, 4, 2, 6, 1]


# -- what is read --------------------------------------------------------------------------------------------------


def test_a_view_of_a_value_has_its_numbers_in_its_own_shape(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.describe(Manifest(), RankEnv())
    array = draw(2, 3)
    columns = {"phase": ["fwd"] * 2, "name": ["a", "b"], "slot": ["out0", "in0"], "dtype": ["float32"] * 2,
               "shape": [(2, 3), (6,)], "numel": [6, 6], "same_as": [None, 0], "tensor": ["t", None], "micro": [0, 0],
               "call": [0, 0]}  # fmt: skip
    writer.write(TensorRecord(0, "t", "F32", (2, 3), memoryview(array.reshape(-1).view(np.uint8))))
    writer.write(StepRecords(0, columns, np.array([0], dtype=np.int32), np.array([statistics(array)])))
    writer.close()
    value, view = read_rank_step(Run(tmp_path), 0, 0).values
    assert (view.root, value.root) == (0, 0)
    assert np.array_equal(view.load(), array.reshape(6))
    assert (view.stats.shape, view.stats.sum) == ((6,), value.stats.sum)


@pytest.mark.parametrize(
    ("name", "dtype", "unsigned"),
    [
        ("BF16", torch.bfloat16, np.uint16),
        ("F8_E4M3", torch.float8_e4m3fn, np.uint8),
        ("F8_E5M2", torch.float8_e5m2, np.uint8),
        ("F8_E8M0", torch.float8_e8m0fnu, np.uint8),
    ],
)
def test_floats_that_numpy_lacks_are_what_torch_says_they_are(name, dtype, unsigned):
    bits = np.arange(np.iinfo(unsigned).max + 1, dtype=unsigned).reshape(2, -1)
    wanted = torch.from_numpy(bits.view(np.dtype(unsigned).str.replace("u", "i"))).view(dtype).float().numpy()
    found = numbers(TensorValue(name, bits.shape, bits))
    assert found.dtype == np.float32
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("size", [None, 0, 100])
def test_statistics_are_left_where_the_file_of_values_is_gone_or_truncated(tmp_path, size):
    rows = [row("a", draw(2, 3))]
    record(tmp_path, {0: rows}, steps=(0, 1))
    file, other = sorted((tmp_path / "tensors").rglob("*.safetensors"))
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])
    run = Run(tmp_path)
    (value,), (whole,) = (read_rank_step(run, step, 0).values for step in (0, 1))
    assert value.load is None
    assert value.stats.sum == whole.stats.sum
    assert np.array_equal(whole.load(), rows[0]["array"])
    assert [line.partition(":")[0] for line in run.problems] == [str(file.relative_to(tmp_path))]
    read_rank_step(run, 0, 0)
    assert len(run.problems) == 1
    assert other.name not in run.problems[0]


def test_a_stored_value_that_is_damaged_says_what_to_do(tmp_path):
    record(tmp_path, {0: [row("a", draw(2, 3))]})
    (file,) = (tmp_path / "tensors").rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 0xFF
    file.write_bytes(content)
    (value,) = read_rank_step(Run(tmp_path), 0, 0).values
    with pytest.raises(RunError, match=r"are not those that were written. Copy the Run again; without that file"):
        value.load()


def test_modules_that_were_compiled_are_known_by_the_note_of_the_recorder(tmp_path):
    inside = [
        row("blocks.0", draw(2)),
        row("blocks.0.up", draw(2)),
        row("blocks.1", draw(2)),
        row("LM", draw(2), module=""),
    ]
    ref = record(tmp_path / "ref", {0: inside})
    note = "blocks.0 is compiled: what runs inside it is not seen, only what goes in and comes out."
    run = record(tmp_path / "run", {0: inside[2:]}, notes=[note])
    other = record(tmp_path / "other", {0: inside[2:]})
    for one, why in ((run, "inside a compiled module of RUN"), (other, "RUN has no module of that name")):
        pairs = arrange(one, ref)[0].read().pairs
        assert {pair.reason for pair in pairs if pair.reason} == {f"only in REF: {why}"}


# -- which steps differ --------------------------------------------------------------------------------------------


def test_steps_that_differ_in_any_number_are_those_that_differ(tmp_path):
    rng = np.random.default_rng(3)
    steps = {step: [row(f"m{place}", rng.normal(size=(2, 2))) for place in range(5)] for step in range(8)}
    other = {step: [dict(each) for each in rows] for step, rows in steps.items()}
    other[2][3]["array"] = other[2][3]["array"] * np.float32(1 + 2**-22)
    other[4] = other[4][:-1]
    other[5][0]["call"] = 1
    other[6][0]["array"] = np.full((2, 2), np.nan, np.float32)
    steps[6][0]["array"] = np.full((2, 2), np.nan, np.float32)
    other[7][0]["name"] = "renamed"
    for name, made in (("run", steps), ("ref", other)):
        for rank in (0, 1):
            writer = RunWriter(tmp_path / name, rank=rank, seal_steps=3)
            writer.describe(
                Manifest(world_size=2, data_parallel_ranks=[0, 1]) if rank == 0 else None, RankEnv(rank=rank)
            )
            for step in steps:
                write(writer, step, made[step] if rank == 0 else steps[step])
            writer.close()
    run, ref = Run(tmp_path / "run"), Run(tmp_path / "ref")
    assert differing_steps(run, ref) == [(2, 0), (4, 0), (5, 0)]
    assert differing_steps(run, ref, steps=[3, 4], ranks=[0, 1]) == [(4, 0)]
    assert differing_steps(run, ref, ranks=[1]) == []
