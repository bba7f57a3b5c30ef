"""Real ranks that write to a disk for each node, and one Run made of the pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.page import table
from torch import nn

import trueline
from trueline.demo.ranks import Ranks

RANKS, NODES, STEPS = 64, 8, 40
SCALED = 37
FACTOR = 8.0
"""The loss of rank ``SCALED`` is so many times what it should be, in the job that is spoilt."""

ABOUT = """\
{ranks} processes in one gloo group under DDP, forked after the import, {steps} steps; each {share} write to a directory
of their own, as nodes do (`trueline.watch(out=...)`), and `collect` brings the {nodes} pieces together."""


def train(rank: int, world_size: int, disks: str | None, share: int, scaled: int | None) -> tuple[list[float], int]:
    """Losses, then weights at last, and the KiB of memory that are this rank's alone."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    watch = None if disks is None else trueline.watch(model, optimizer, out=f"{disks}/node{rank // share}/run")
    told: list[float] = []
    for _ in range(STEPS):
        loss = model(torch.randn(8, 16, generator=draw)).square().mean()
        (loss * (FACTOR if rank == scaled else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(loss.item())
    if watch is not None:
        watch.close()
    dist.barrier()
    sizes = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    weights = torch.cat([param.detach().ravel() for param in model.parameters()]).tolist()
    return told + weights, int(sizes["Private_Dirty"].split()[0])


def measure(folder: Path, *, quick: bool) -> str:
    """The table, as Markdown."""
    num_ranks, nodes = (8, 2) if quick else (RANKS, NODES)
    share, scaled = num_ranks // nodes, SCALED % num_ranks
    with Ranks(num_ranks, timeout_s=1800.0) as ranks:
        bare = ranks.run(train, None, share, None)
        watched = ranks.run(train, str(folder / "healthy"), share, None)
        ranks.run(train, str(folder / "spoilt"), share, scaled)
    same = sum(one[0] == other[0] for one, other in zip(bare, watched, strict=True))
    rows: list[tuple[str, Any]] = [
        ("ranks whose losses and weights are bitwise those without a watch", f"{same} of {num_ranks}"),
        ("memory of one rank alone, without a watch", f"{max(size for _, size in bare) // 1024} MiB"),
        ("memory of one rank alone, watched", f"{max(size for _, size in watched) // 1024} MiB"),
        ("`collect` without the last node", _collected(folder / "healthy", nodes - 1)),
        ("`collect` of all", _collected(folder / "healthy", nodes)),
        ("`check`, all ranks alike", _checked(folder / "healthy")),
        ("`collect`, one rank spoilt", _collected(folder / "spoilt", nodes)),
        (f"`check`, the loss of rank {scaled} times {FACTOR:g}", _checked(folder / "spoilt")),
    ]
    about = ABOUT.format(ranks=num_ranks, steps=STEPS, share=share, nodes=nodes)
    return f"## {num_ranks} real ranks on {nodes} disks\n\n{about}\n\n{table(('what', 'found'), rows)}"


def _collected(disks: Path, nodes: int) -> str:
    found = trueline.collect([disks / f"node{node}/run" for node in range(nodes)], str(disks / "whole"))
    return f"{found.verdict.replace(str(disks), '…')} (exit {found.exit_code})"


def _checked(disks: Path) -> str:
    report = trueline.check(disks / "whole")
    return f"{report.verdict.line} (exit {report.exit_code})"
