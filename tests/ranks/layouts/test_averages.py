"""Averages of the weights beside DDP and of shards: what ranks do is left alone, but for averages that are not one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import trueline
from trueline.laws.averages.average_differs import check
from trueline.store.reader import Run

STEPS, DECAY = 8, 0.9


def train(rank, world, out, kind):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(rank if kind == "own start" else 0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
    teacher = copy.deepcopy(model).requires_grad_(False)
    if kind == "shards":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
        fully_shard(model, mesh=mesh)
        fully_shard(teacher, mesh=mesh)
    ddp = model if kind == "shards" else nn.parallel.DistributedDataParallel(model)
    called = None if kind == "shards" else AveragedModel(ddp, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1}, averages=[(teacher, DECAY)]):
        for step in range(STEPS):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * step + rank))
            (ddp(x) - x[:, :3]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if called is not None:
                called.update_parameters(ddp)
            if kind != "only rank 0" or rank == 0:
                for e, p in zip(teacher.parameters(), model.parameters(), strict=True):
                    e.detach().lerp_(p.detach(), 1 - DECAY)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "found"),
    [("alike", []), ("only rank 0", []), ("shards", []), ("own start", [("warning", "ranks", (0, 1))])],
)
def test_only_averages_that_differ_between_ranks_are_told_of(two, tmp_path, kind, found):
    two.run(train, str(tmp_path / "run"), kind)
    run = Run(str(tmp_path / "run"))
    assert [(each.severity, each.evidence["kind"], each.ranks) for each in check(run)] == found
    assert len(run.texts("average_facts")) >= 2 * (STEPS - 1)
