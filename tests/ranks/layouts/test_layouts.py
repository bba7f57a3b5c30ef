"""Ranks on meshes of several axes, attached as by `trueline run`: replicas are compared within their groups, one check
covers all groups, and copies are compared wherever they are.
"""

from __future__ import annotations

import shutil

import pytest
import torch.distributed as dist
from tests.ranks.layouts import train
from tests.ranks.layouts.ranks import trained, watched
from torch.distributed.device_mesh import init_device_mesh

import trueline
from trueline.capture.model.mesh import piece_of_sequence
from trueline.cli.run_end import _run as last_line
from trueline.demo.ranks import Ranks
from trueline.web.watched_run import judged_runs

HEALTHY = {
    "hand_tp": ("sharded", [[0, 2], [1, 3]]),
    "fsdp2_tp": ("fsdp2", [[0, 2], [1, 3]]),
    "pp_ddp": ("ddp", [[0, 1], [2, 3]]),
    "pp": ("sharded", [[0, 1, 2, 3]]),
    "ep_ddp": ("ddp", [[0, 1, 2, 3]]),
    "ep_fsdp2": ("fsdp2", [[0, 1, 2, 3]]),
}
"""By mode, the adapter and the ranks of each Run."""
STEPS = 8
"""From so many on, all checks judge."""


@pytest.fixture(scope="module")
def watching():
    """The pool of a number of ranks whose trainings are watched, one for all tests."""
    pools = {}
    yield lambda world_size: pools.setdefault(world_size, Ranks(world_size))
    for pool in pools.values():
        pool.stop()


@pytest.fixture(scope="module")
def attached(watching):
    """Four ranks whose trainings are watched."""
    return watching(4)


def groups(path):
    run = trueline.open_run(path)
    return [run, *map(trueline.open_run, run.groups)]


def serious(report):
    return [(finding.code, finding.ranks) for finding in report.findings if finding.is_grave]


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", HEALTHY)
def test_a_healthy_training_is_bitwise_equal_seen_on_all_ranks_and_without_a_finding(four, attached, tmp_path, mode):
    weights = watched(attached, mode, tmp_path / "run", steps=STEPS)
    assert weights == trained(four, mode, steps=STEPS)
    runs = groups(tmp_path / "run")
    assert (runs[0].manifest.adapter, [run.ranks for run in runs]) == HEALTHY[mode]
    assert [run.problems for run in runs] == [[]] * len(runs)
    assert all(run.live_findings == [] for run in runs)
    report = trueline.check(tmp_path / "run")
    assert serious(report) == [] or mode == "pp"
    if mode != "pp":
        assert report.judged.ranks == (0, 1, 2, 3)
        assert all(run.pivot("grad_norm")[1].all() for run in runs)


def test_stages_begin_together_at_their_first_update_and_only_the_last_has_a_loss(tmp_path):
    with Ranks(3) as ranks:
        watched(ranks, "pp", tmp_path / "run", steps=2)
    (run,) = groups(tmp_path / "run")
    assert run.ranks == [0, 1, 2]
    assert not any("did not come" in note for note in run.manifest.notes)
    assert run.pivot("loss")[1].any(axis=0).tolist() == [False, False, True]


def test_the_gradient_of_a_stage_of_ddp_is_that_of_all_its_micro_batches(watching, tmp_path):
    watched(watching(2), "pp_ddp", tmp_path / "run", steps=2)
    job, model = train.Job(1), train.plain()
    inputs, labels = next(job.batches(1, 0))
    (4 * job.loss(model(inputs), labels)).backward()  # the schedule divides by its micro-batches at the end
    first = ("embed", "layers.0")
    norms = [
        sum(float(p.grad.square().sum()) for name, p in model.named_parameters() if name.startswith(first) is is_first)
        for is_first in (True, False)
    ]
    for run, norm2 in zip(groups(tmp_path / "run"), norms, strict=True):
        assert run.pivot("grad_norm")[0][0, 0] == pytest.approx(norm2**0.5, rel=1e-5)  # rounding of float32


@pytest.fixture(scope="module")
def drifting(attached, tmp_path_factory):
    """A norm that changes on the second of two ranks which hold one model together, in both replicas of the model."""
    path = tmp_path_factory.mktemp("drift") / "run"
    watched(attached, "fsdp2_tp", path, steps=10, fault="weight drifts", bad=(1, 3))
    return path


@pytest.mark.in_turn
def test_copies_on_parts_of_a_model_that_part_are_found_in_the_groups_together(drifting):
    (finding,) = [one for one in trueline.check(drifting).findings if one.is_grave]
    assert (finding.code, finding.severity, finding.ranks) == ("replica-drift", "warning", (0, 1, 2, 3))
    assert finding.evidence["names"] == ["layers.0.norm.weight"]
    assert (finding.evidence["last_equal"], finding.evidence["first_different"]) == (4, 5)


def test_copies_beside_the_local_tensors_of_ddp_over_tensor_parallelism_are_known(attached, tmp_path):
    watched(attached, "ddp_tp", tmp_path / "run", steps=2)
    alike = trueline.open_run(tmp_path / "run").env[0].alike
    assert [
        (held.ranks, "layers.0.norm.weight" in held.params, "layers.0.up.weight" in held.params) for held in alike
    ] == [([0, 1], True, False)]


def test_one_line_and_one_page_cover_all_groups(drifting):
    assert "(fsdp2, 4 ranks in 2 groups)" in last_line(str(drifting))
    assert [watched.run.ranks for watched in judged_runs(str(drifting))] == [[0, 2], [1, 3]]


@pytest.mark.in_turn
def test_a_run_beside_it_of_another_start_is_not_taken_for_a_group(drifting, tmp_path):
    with Ranks(4) as ranks:
        watched(ranks, "hand_tp", tmp_path / "run", steps=1)
    shutil.rmtree(tmp_path / "run.ranks-1")
    shutil.copytree(f"{drifting}.ranks-1", tmp_path / "run.ranks-1")
    run = trueline.open_run(tmp_path / "run")
    assert run.groups == []
    assert run.problems == [f"rank {rank}: it wrote nothing in this Run of 4 ranks" for rank in (1, 3)]


@pytest.mark.in_turn
def test_a_replica_of_an_expert_that_is_not_reduced_is_found_among_its_replicas(watching, tmp_path):
    watched(watching(6), "ep_hand", tmp_path / "run", steps=4, fault="expert not reduced", bad=(2,))
    (finding,) = [one for one in trueline.check(tmp_path / "run").findings if one.is_grave]
    assert (finding.code, finding.ranks) == ("replica-drift", (2,))
    assert all(".expert." in name for name in finding.evidence["names"])


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", ["cp_ddp", "cp_fsdp2"])
def test_ranks_are_compared_with_those_that_hold_the_same_piece_of_their_sequences(watching, tmp_path, mode):
    watched(watching(6), mode, tmp_path / "run", steps=18, fault="loss x 1.5", bad=(2,))
    (run,) = groups(tmp_path / "run")
    assert run.manifest.pieces == [[0, 2, 4], [1, 3, 5]]
    assert serious(trueline.check(tmp_path / "run")) == [("loss-scale-wrong", (2,)), ("worker-scale", (2,))]


def _places(rank, world):
    """Of no mesh, of one that has all ranks on its axis, of two axes in torch's words, of Megatron-core's group."""
    del rank, world
    found = [piece_of_sequence()]
    whole = init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "cp"))
    found.append(piece_of_sequence())
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    megatron = [dist.new_group(ranks, group_desc="CONTEXT_PARALLEL_GROUP") for ranks in ([0, 2], [1, 3])]
    found.append(piece_of_sequence())
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "ulysses"))
    found.append(piece_of_sequence())
    del whole, megatron, both
    return found


def test_the_piece_of_a_rank_is_its_place_on_every_axis_that_is_called_so():
    with Ranks(4) as ranks:
        found = ranks.run(_places)
    assert [places[:3] for places in found] == [[(), (rank,), (rank // 2,)] for rank in range(4)]
    assert len({places[3] for places in found}) == 4


@pytest.mark.parametrize("mode", ["ep_hand", "ep_ddp"])
def test_experts_that_one_rank_each_holds_may_begin_with_equal_biases(watching, tmp_path, mode):
    watched(watching(2), mode, tmp_path / "run", steps=4)
    assert serious(trueline.check(tmp_path / "run")) == []
