"""Who is a replica of whom, who holds which shard and who reduces with whom, against ranks counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from trueline.capture.model.mesh import Mesh, on_device_mesh

AXES = {"pp": "part", "replicate": "replica", "shard": "shard", "cp": "replica", "tp": "part"}


def mesh(rank, **sizes):
    """Axes in torchtitan's order, the last one running fastest."""
    ranks = np.arange(np.prod([*sizes.values()])).reshape(*sizes.values())
    return Mesh(ranks, tuple(sizes), tuple(AXES[name] for name in sizes), rank=rank, members=tuple(ranks.ravel()))


def test_hsdp_has_replicas_across_and_shards_within_its_rows():
    one = mesh(4, replicate=2, shard=3)
    assert one.coordinates() == (1, 1)
    assert (one.replicas, one.workers) == ((1, 4), (0, 1, 2, 3, 4, 5))
    assert (one.shards, one.shard, one.replica_key) == (3, 1, "shard 1 of 3")
    assert one.compares


def test_pipeline_by_data_by_tensor_parallelism_compares_one_stage_and_one_cut():
    one = mesh(5, pp=2, replicate=2, tp=2)  # rank = 4 * stage + 2 * replica + cut
    assert one.coordinates() == (1, 0, 1)
    assert one.workers == one.replicas == (5, 7)
    assert one.along("part") == (0, 1, 4, 5)
    assert one.group("pp") == (1, 5)
    assert one.group("pp", rank=2) == (2, 6)
    assert (one.shards, one.compares, one.replica_key) == (1, False, "rank 5")


@pytest.mark.parametrize("rank", range(32))
def test_five_axes_agree_with_counting_every_rank(rank):
    sizes = {"pp": 2, "replicate": 2, "shard": 2, "cp": 2, "tp": 2}
    one = mesh(rank, **sizes)
    bits = {other: tuple(other >> place & 1 for place in (4, 3, 2, 1, 0)) for other in range(32)}
    own = bits[rank]
    alike = {name: [at[place] == own[place] for at in bits.values()] for place, name in enumerate(sizes)}
    same = {name: {other for other in range(32) if alike[name][other]} for name in sizes}
    assert one.coordinates() == own
    assert set(one.workers) == same["pp"] & same["tp"]
    assert set(one.replicas) == same["pp"] & same["tp"] & same["shard"]
    assert (one.shards, one.shard) == (2, own[2])


def test_every_rank_is_in_one_group_of_workers_that_all_of_it_name():
    groups = {mesh(rank, pp=2, replicate=2, shard=2, tp=2).workers for rank in range(16)}
    assert sorted(rank for group in groups for rank in group) == list(range(16))


def test_a_rank_that_is_not_on_the_mesh_is_named():
    with pytest.raises(ValueError, match="Rank 9 is not on the mesh"):
        mesh(0, shard=2, tp=2).coordinates(9)


def parameter(ranks, names, *placements):
    """What a DTensor on a mesh of ``ranks`` shows of itself."""
    ranks = torch.tensor(ranks)
    device_mesh = SimpleNamespace(mesh=ranks, mesh_dim_names=names, ndim=ranks.dim())
    return SimpleNamespace(device_mesh=device_mesh, placements=placements, to_local=None)


def test_an_expert_is_on_a_mesh_of_its_own():
    """Eight ranks: every layer in 8 shards; of 2 x 4 experts, each of four groups of experts in 2 shards."""
    experts = [[0, 1, 2, 3], [4, 5, 6, 7]]
    shards = on_device_mesh(
        SimpleNamespace(mesh=torch.tensor([1, 5]), mesh_dim_names=("efsdp",), ndim=1), "shard", rank=5
    )
    one = Mesh(np.arange(8), ("fsdp",), ("shard",), rank=5, members=tuple(range(8)), other_meshes=(shards,))
    expert = one.mesh_of(parameter(experts, ("efsdp", "ep"), Shard(1), Shard(0)))
    assert expert.roles == ("shard", "part")
    assert (expert.shards, expert.shard, expert.workers, expert.replicas) == (2, 1, (1, 5), (5,))
    router = one.mesh_of(parameter(list(range(8)), ("fsdp",), Shard(0)))
    assert (router.shards, router.shard) == (8, 5)


def test_what_tensor_parallelism_holds_whole_has_replicas_across_the_cut():
    one = Mesh(np.array([1, 3]), ("dp",), ("shard",), rank=3, members=(1, 3))
    tp = [[0, 1], [2, 3]]
    norm = one.mesh_of(parameter(tp, ("dp", "tp"), Shard(0), Replicate()))
    assert (norm.replicas, norm.shards, norm.along("part")) == ((2, 3), 2, (3,))
    cut = one.mesh_of(parameter(tp, ("dp", "tp"), _StridedShard(0, split_factor=2), Shard(0)))  # both along dim 0
    assert (cut.replicas, cut.shards, cut.along("part")) == ((3,), 2, (2, 3))


def test_what_no_framework_cut_is_a_replica_beside_shards():
    one = mesh(4, replicate=2, shard=3)
    whole = one.mesh_of(torch.zeros(3))
    assert (whole.shards, whole.replicas) == (1, (0, 1, 2, 3, 4, 5))
