"""torch's DistributedDataParallel."""

from __future__ import annotations

import torch
from benchmarks.frameworks.job import Job
from torch import nn

PACKAGE = "torch"

MODES = ("DDP", "DDP, 2 micro-batches")


def train(job: Job) -> None:
    """Train as a script would that knows nothing of Trueline."""
    model = nn.parallel.DistributedDataParallel(job.model(), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, model.module.state_dict)
        for batch in micro_batches:
            (job.loss(model(batch["input_ids"]), batch) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    job.end(model.module.state_dict())
