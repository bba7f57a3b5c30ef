"""torch's DistributedDataParallel, also compiled, with a comm hook, and with optimizer states cut over ranks."""

from __future__ import annotations

import contextlib

import torch
from benchmarks.frameworks.job import Job
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer

PACKAGE = "torch"

MODES = (
    *("DDP", "DDP, 2 micro-batches", "DDP, 2 micro-batches, each reduced"),
    *("DDP, compiled", "DDP, PowerSGD", "DDP, ZeroRedundancyOptimizer"),
)


def train(job: Job) -> None:
    """Train as a script would that knows nothing of Trueline."""
    # With gloo, PowerSGD's callbacks of two buckets wait for each other; dynamo wants the first to be the smallest.
    is_one = "PowerSGD" in job.mode or "compiled" in job.mode
    model = nn.parallel.DistributedDataParallel(job.model(), bucket_cap_mb=25 if is_one else 0.01)
    if "PowerSGD" in job.mode:
        model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=4), powerSGD_hook)
    if "Zero" in job.mode:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=job.lr)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    forward = torch.compile(model) if "compiled" in job.mode else model
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, model.module.state_dict)
        for place, batch in enumerate(micro_batches):
            is_last = place + 1 == len(micro_batches)
            with contextlib.nullcontext() if is_last or "each reduced" in job.mode else model.no_sync():
                (job.loss(forward(batch["input_ids"]), batch) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    job.end(model.module.state_dict())
