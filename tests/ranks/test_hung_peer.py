"""A rank that hangs for a while, longer than watching waits for it, changes nothing but what is recorded."""

from __future__ import annotations

import os
import signal
import threading
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from trueline.capture.step import exchange
from trueline.demo.ranks import Ranks
from trueline.store.reader import Run

PLACES = ("before forward", "before the update", "before closing")
HANGS_S = 0.6
PATIENCE_S = 0.1


def hang(rank, pids, hangs):
    """Stop the last rank's process from outside, as a debugger or a stuck file system does, and let it go on later."""
    if rank == 0 and hangs:
        os.kill(pids[-1], signal.SIGSTOP)
        threading.Timer(HANGS_S, os.kill, (pids[-1], signal.SIGCONT)).start()


def train(rank, world_size, out, place):
    import trueline

    pids = [None] * world_size
    dist.all_gather_object(pids, os.getpid())
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(rank)
    losses = []
    with mock.patch.object(exchange, "PATIENCE_S", PATIENCE_S):
        watch = trueline.watch(model, optimizer, out=out, plan={"every": 1}) if out else None
        for step in range(6):
            hangs = step == 2
            hang(rank, pids, hangs and place == "before forward")
            loss = model(torch.randn(8, 4, generator=draw)).square().mean()
            loss.backward()
            hang(rank, pids, hangs and place == "before the update")
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        hang(rank, pids, place == "before closing")
        if watch is not None:
            watch.close()
    return losses, [param.tolist() for param in model.module.parameters()]


def test_a_rank_that_hangs_anywhere_trains_as_if_nobody_watched(tmp_path):
    with Ranks(2) as two:
        bare = two.run(train, None, None)
        outs = {place: tmp_path / place.replace(" ", "-") for place in PLACES}
        for place, out in outs.items():
            assert two.run(train, str(out), place) == bare, place
    for out in outs.values():
        run = Run(out)
        assert run.steps.tolist() == list(range(6))
        assert run.unclosed == []
        assert run.pivot("loss")[1].all()
