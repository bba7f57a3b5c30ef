"""On a GPU: no hook synchronises, training is bitwise the same, rows arrive. Skipped where there is no CUDA device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trueline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STEPS = 6


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(out, *, ddp, strict=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 100)).cuda()
    net = nn.parallel.DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    watch = trueline.watch(net, optimizer, out=out, plan={"every": 1, "params_every": 2}) if out else None
    batches = [torch.randint(0, 100, (4, 16), device="cuda") for _ in range(STEPS)]
    torch.cuda.synchronize()
    for step, tokens in enumerate(batches):
        if strict and step == 2:
            torch.cuda.set_sync_debug_mode("error")
        loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        if watch is not None:
            watch.loss(loss, tokens=tokens.numel())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")
    if watch is not None:
        watch.close()
    return [param.detach().cpu() for param in model.parameters()]


@pytest.mark.parametrize("ddp", [True, False])
def test_no_hook_synchronises_and_no_bit_changes(one_rank, tmp_path, ddp):
    bare = train(None, ddp=ddp)
    watched = train(tmp_path / "run", ddp=ddp, strict=True)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    run = trueline.open_run(tmp_path / "run")
    assert [finding.claim for finding in run.live_findings] == []
    assert len(run.steps) == STEPS
    for column in ("loss", "grad_norm", "tokens"):
        assert run.pivot(column)[1].all(), column
