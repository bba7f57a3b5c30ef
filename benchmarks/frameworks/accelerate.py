"""Accelerate: a script's own loop, with what ``Accelerator.prepare`` returns."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from benchmarks.frameworks.job import Job
from torch.utils.data import DataLoader

PACKAGE = "accelerate"

MODES = ("DDP", "DDP, 2 micro-batches", "DDP, bf16")


def train(job: Job) -> None:
    """Train as the examples of Accelerate do."""
    precision = "bf16" if "bf16" in job.mode else "no"
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.micros, mixed_precision=precision)
    model = job.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = job.loader()
    if not job.fault:
        generator = torch.Generator().manual_seed(0)
        loader = accelerator.prepare(
            DataLoader(job.dataset(), batch_size=job.batch_size, shuffle=True, generator=generator)
        )
    model, optimizer = accelerator.prepare(model, optimizer)
    step, held = 0, []
    for batch in loader:
        if not held:
            job.keep(step, accelerator.unwrap_model(model).state_dict)
        held.append(batch)
        with accelerator.accumulate(model):
            accelerator.backward(job.loss(model(batch["input_ids"]), batch))
            optimizer.step()
            optimizer.zero_grad()
        if len(held) == job.micros:
            job.keep_batches(step, held)
            step, held = step + 1, []
        if step == job.steps:
            break
    job.end(accelerator.unwrap_model(model).state_dict())
