"""What watching costs one rank, as there are more of them: real ranks, and the sum that would be laid out for more."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.page import table
from torch import nn

import trueline
from trueline.capture.step import exchange, shared_columns
from trueline.capture.step.shared_columns import Measurement
from trueline.demo.ranks import Ranks
from trueline.schema.plan import Plan

REAL = (2, 4, 8, 16, 32, 64)
LAID_OUT = (2, 64, 1_024, 10_000)
STEPS, WARM = 60, 10
GROUPS, LENGTH = 16, 521
REPEATS = 30

ABOUT = f"""\
Real ranks in one gloo group, a small model with an all-reduce of its own, every step sampled, {STEPS} steps, the first
{WARM} left out. CPU time of a step less what it is without a watch, in the training thread and in all others of the
process (those of the group that sums): the mean over steps, the median over ranks. Sockets are those that a rank opens
for watching."""

SUM = """\
And the vector that is summed at a sampled step, laid out by the same code for more ranks: its part for sketches and
norms, whose length depends on the model's groups alone, and {scalars} numbers for each rank; the CPU time to lay it out
and to derive a rank's columns from what comes back."""


def train(rank: int, world_size: int, out: str | None) -> tuple[float, float, int]:
    """CPU seconds of a step in this thread and in the others, and the sockets that watching opened."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    begun = (0.0, 0.0)
    opened = 0
    watch = None
    for step in range(STEPS):
        if step == 1 and out is not None:
            opened = -_sockets()
            watch = trueline.watch(model, optimizer, out=out, plan={"every": 1})
        if step == WARM:
            begun = time.thread_time(), time.process_time()
        model(torch.randn(8, 64, generator=draw)).square().mean().backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= world_size
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
    here, every = time.thread_time() - begun[0], time.process_time() - begun[1]
    if watch is not None:
        opened += _sockets()
        watch.close()
    return here / (STEPS - WARM), (every - here) / (STEPS - WARM), opened


def _sockets() -> int:
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def measure(folder: Path, *, quick: bool) -> str:
    """Both tables, as Markdown."""
    rows = []
    for num_ranks in REAL[:3] if quick else REAL:
        out = folder / str(num_ranks)
        with Ranks(num_ranks, timeout_s=1800.0) as ranks:
            bare = ranks.run(train, None)
            watched = ranks.run(train, str(out))
        here, others = (1000 * (_median(watched, at) - _median(bare, at)) for at in (0, 1))
        rows.append([num_ranks, f"{here:.2f}", f"{others:.2f}", max(opened for _, _, opened in watched)])
        print(rows[-1], flush=True)
    real = table(("ranks", "in the training thread, ms", "in other threads, ms", "sockets"), rows, right=range(4))
    header = ("ranks", "sketches and norms, KiB", "of each rank, KiB", "lay out and derive, ms")
    more = table(header, map(laid_out, LAID_OUT), right=range(4))
    return "\n\n".join(["## What a rank pays", ABOUT, real, SUM.format(scalars=len(shared_columns.SCALARS)), more])


def _median(found: Sequence[tuple[float, float, int]], at: int) -> float:
    return statistics.median(seconds[at] for seconds in found)


def laid_out(num_ranks: int) -> list[str]:
    """One row of the second table."""
    sketch = np.random.default_rng(0).standard_normal((GROUPS, LENGTH))
    norm = np.linalg.norm(sketch, axis=1)
    own = Measurement(local_norm=norm, local=sketch, reduced=sketch, used=sketch)
    room = shared_columns.room(Plan().max_groups)
    team = exchange.Team(ranks=tuple(range(num_ranks)), rank=0, group=None, room=room)
    seconds, size = [], 0
    for _ in range(REPEATS):
        begun = time.process_time()
        scalars = shared_columns.scalars(own, step=1, passes=1, plain=1e-3, sampled=1e-2, step_s=1.0)
        packed = shared_columns.pack(own, reduced_norm2=norm**2, sharded=False, replicas=1)
        pending = exchange.start(team, step=1, scalars=scalars, sums=packed)
        size = pending.buffer.numel()
        seconds.append(time.process_time() - begun)
        block = np.array([scalars] * num_ranks)
        begun = time.process_time()
        sums = shared_columns.unpack(block, packed * num_ranks, groups=GROUPS, k=LENGTH)
        shared_columns.iterations_differ(block)
        numel = np.full(GROUPS, 1e6)
        facts = {"numel": numel, "dtype": "torch.float32", "roundings": num_ranks + 1}
        shared_columns.columns(own, sums, reduced_norm2=norm**2, sharded=False, **facts)
        seconds[-1] += time.process_time() - begun
    sizes = [f"{8 * numbers / 1024:,.1f}" for numbers in (room, size - room)]
    return [f"{num_ranks:,}", *sizes, f"{1000 * statistics.median(seconds):.2f}"]
