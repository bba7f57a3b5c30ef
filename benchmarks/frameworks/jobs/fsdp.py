"""FullyShardedDataParallel (FSDP1, with flat and with original parameters) and fully_shard (FSDP2) of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from benchmarks.frameworks.job import Job
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

PACKAGE = "torch"

KINDS = ("FSDP1", "FSDP1 with original parameters", "FSDP2")
MODES = (
    *KINDS,
    *(f"{kind}, 2 micro-batches" for kind in KINDS),
    *(f"{kind}, 2 micro-batches, each reduced" for kind in KINDS),
)


def train(job: Job) -> None:
    """Train as a script would that knows nothing of Trueline."""
    model = sharded(job.model(), job.mode.split(",")[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, lambda: whole(model))
        for place, batch in enumerate(micro_batches):
            with synced(model, place + 1 == len(micro_batches) or "each reduced" in job.mode):
                (job.loss(model(batch["input_ids"]), batch) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    job.end(whole(model))


def sharded(model: nn.Module, kind: str) -> nn.Module:
    """``model`` cut over all ranks, each layer by itself."""
    layers = {type(layer) for layer in model.blocks}  # type: ignore[union-attr]
    if kind != "FSDP2":
        original = kind != "FSDP1"
        policy, device = ModuleWrapPolicy(layers), torch.device("cpu")
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device, use_orig_params=original)
    for layer in model.blocks:  # type: ignore[union-attr]
        fully_shard(layer)
    return fully_shard(model)


def synced(model: Any, now: bool) -> AbstractContextManager[None]:
    """A block in which gradients are reduced, or kept for the next micro-batch."""
    if isinstance(model, FullyShardedDataParallel):
        return contextlib.nullcontext() if now else model.no_sync()
    model.set_requires_gradient_sync(now)
    return contextlib.nullcontext()


def whole(model: nn.Module) -> Mapping[str, Tensor]:
    """All weights, gathered on every rank."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
