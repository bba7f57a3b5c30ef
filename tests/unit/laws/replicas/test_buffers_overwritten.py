"""buffers-overwritten: a codebook that each rank counts by itself under DDP; buffers that ranks write alike."""

import pytest
import torch
import torch.distributed as dist
from tests.unit.asked import asked
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trueline

WIDTH, STEPS = 4, 8


class Counting(nn.Module):
    """A layer with buffers, of which ``kind`` says how a pass in training mode changes them."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer, self.norm = kind, nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("sizes", torch.zeros(WIDTH))
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.register_buffer("last", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        h = self.norm(self.layer(x))
        mean = h.detach().mean(0)
        if self.training:
            self.calls += 1
            self.running_mean.lerp_(mean, 0.1)
            self.last = mean
            if self.kind == "reduced":
                dist.all_reduce(mean)
            if self.kind == "once" and self.calls == 1:
                self.sizes.copy_(mean)
            if self.kind == "replaced":
                self.sizes = 0.9 * self.sizes + mean
            if self.kind in ("in place", "reduced"):
                self.sizes.lerp_(mean, 0.1)
        return h


def train(rank, world_size, kind, out):
    torch.manual_seed(0)
    model = DistributedDataParallel(Counting(kind))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 1}):
        for _ in range(STEPS):
            model(torch.randn(6, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["in place", "replaced"])
def test_a_buffer_of_each_rank_that_ddp_overwrites_is_found(two, tmp_path, kind):
    two.run(train, kind, str(tmp_path / "run"))
    (finding,), _ = asked(tmp_path / "run", "buffers-overwritten")
    assert (finding.severity, finding.ranks) == ("confirm", (1,))
    assert finding.claim == (
        "Buffer sizes follows each rank's own batch, and DDP replaces that of rank 1 with rank 0's at the next forward "
        "pass: at each of 8 steps that were looked at."
    )


@pytest.mark.parametrize("kind", ["reduced", "once", ""])
def test_buffers_that_ranks_write_alike_or_once_are_silent(two, tmp_path, kind):
    two.run(train, kind, str(tmp_path / "run"))
    findings, missing = asked(tmp_path / "run", "buffers-overwritten")
    assert (findings, missing) == ([], [])
