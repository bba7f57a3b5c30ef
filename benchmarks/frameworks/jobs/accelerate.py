"""Accelerate: a script's own loop, with what ``Accelerator.prepare`` returns. A shim lets it shard on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, PartialState
from benchmarks.frameworks.job import Job
from benchmarks.frameworks.jobs.fsdp import whole
from torch import Tensor, nn
from torch.utils.data import DataLoader

PACKAGE = "accelerate"

MODES = ("DDP", "DDP, 2 micro-batches", "DDP, bf16", "FSDP1", "FSDP2")


def train(job: Job) -> None:
    """Train as the examples of Accelerate do."""
    precision = "bf16" if "bf16" in job.mode else "no"
    model = job.model()
    with sharding_on_cpu() if "FSDP" in job.mode else contextlib.nullcontext():
        accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=job.micros,
            mixed_precision=precision,
            fsdp_plugin=plugin(job, model) if "FSDP" in job.mode else None,
        )
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
            job.keep(step, lambda: weights_of(model))
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
    job.end(weights_of(model))


def plugin(job: Job, model: nn.Module) -> FullyShardedDataParallelPlugin:
    """FSDP of the mode's version, each layer by itself."""
    return FullyShardedDataParallelPlugin(
        fsdp_version=int(job.mode.split("FSDP")[1][0]),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[type(model.blocks[0]).__name__],  # type: ignore[index, union-attr]
        use_orig_params=True,
    )


def weights_of(model: nn.Module) -> Mapping[str, Tensor]:
    """All weights, whole, by the names that they have in the model that was prepared."""
    return {name.removeprefix("module."): weight for name, weight in whole(model).items()}


def sharding_on_cpu() -> Any:
    """A block in which Accelerate takes ranks on CPUs for ranks on GPUs, as it shards on nothing else."""
    begin = PartialState.__init__

    def as_on_gpus(self: PartialState, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.distributed_type, self.device = DistributedType.MULTI_GPU, torch.device("cpu")  # not "cpu:0"

    return mock.patch.object(PartialState, "__init__", as_on_gpus)
