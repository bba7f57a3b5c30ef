"""As many real ranks as a machine of several nodes has, in one gloo group on this one: forked after the import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import trueline
from trueline.demo.ranks import Ranks
from trueline.judge.check_run import CheckReport, check
from trueline.store.verify import verify

NUM_RANKS = 64
NUM_STEPS = 15
SCALED = 37
FACTOR = 8.0
"""The loss of rank ``SCALED`` is so many times what it should be, in the Run that is spoilt."""


def train(rank: int, world_size: int, out: str | None, scaled: int | None) -> tuple[list[float], int]:
    """Losses, then weights at last, of a small training; and the KiB of memory that are this rank's alone."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    watch = None if out is None else trueline.watch(model, optimizer, out=out)
    told = []
    for _ in range(NUM_STEPS):
        loss = model(torch.randn(8, 16, generator=draw)).square().mean()
        (loss * (FACTOR if rank == scaled else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(loss.item())
    if watch is not None:
        watch.close()
    dist.barrier()
    sizes = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return told + torch.cat([param.detach().ravel() for param in model.parameters()]).tolist(), int(
        sizes["Private_Dirty"].split()[0]
    )


def tried(folder: Path) -> list[tuple[str, Any]]:
    """What was measured and what it was: training with and without a watch, and both verdicts."""
    healthy, spoilt = folder / "healthy", folder / "spoilt"
    with Ranks(NUM_RANKS, timeout_s=600.0) as ranks:
        bare = ranks.run(train, None, None)
        watched = ranks.run(train, str(healthy), None)
        ranks.run(train, str(spoilt), SCALED)
    same = sum(one[0] == other[0] for one, other in zip(bare, watched, strict=True))
    return [
        ("ranks whose losses and weights are bitwise those without a watch", f"{same} of {NUM_RANKS}"),
        ("memory of one rank alone, without a watch", f"{max(size for _, size in bare) // 1024} MiB"),
        ("memory of one rank alone, watched", f"{max(size for _, size in watched) // 1024} MiB"),
        ("`trueline check`, all ranks alike", _told(check(healthy))),
        (f"`trueline check`, the loss of rank {SCALED} times {FACTOR:g}", _told(check(spoilt))),
        ("`trueline verify` of the latter", verify(str(spoilt)).verdict),
    ]


def _told(report: CheckReport) -> str:
    return f"{report.verdict.line} (exit {report.exit_code})"
