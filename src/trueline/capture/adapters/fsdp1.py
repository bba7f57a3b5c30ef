"""FSDP1 (``FullyShardedDataParallel``): what its workers read and lose is compared, and so is every value that two of
them hold alike. Its gradients, which it flattens and reduces by itself, are not watched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction
from trueline.capture.adapters.manual import watch_accumulation
from trueline.capture.model.mesh import Mesh, workers_in
from trueline.capture.model.world import ranks_of
from trueline.capture.probes.gradients import GradientProbe


def fsdp1_adapter(model: nn.Module, process_group: dist.ProcessGroup | None) -> Fsdp1Adapter | None:
    """The adapter of a model that has a part inside ``FullyShardedDataParallel``."""
    modules = list(_modules(model))
    return Fsdp1Adapter(modules, process_group) if modules else None


class Fsdp1Adapter(HookingAdapter):
    """Watches one model inside FSDP1, of any sharding strategy."""

    name = "fsdp1"

    def __init__(self, modules: list[Any], process_group: dist.ProcessGroup | None) -> None:
        super().__init__(
            _mesh(modules, workers_in(process_group)),
            "FullyShardedDataParallel (FSDP1): samples, losses and what ranks hold alike are compared; gradients are "
            "not watched. fully_shard (FSDP2) is watched whole.",
        )

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let accumulation hooks report the gradients of parameters that ranks hold whole."""
        self.detach()
        probe.blind = True
        self.handles = watch_accumulation(probe, guard, due=lambda: True, only=probe.layout.whole)

    def reduction(self) -> Reduction:
        """FSDP's own, which is not seen."""
        return Reduction(seen=False)


def _modules(model: nn.Module) -> Iterator[Any]:
    """Those whose parameters FSDP1 has flattened (private: ``_handle``, a ``_flat_param.FlatParamHandle``)."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FullyShardedDataParallel) and getattr(module, "_handle", None) is not None:
            yield module


def _mesh(modules: list[Any], workers: Mesh) -> Mesh:
    """Replicas of shards: of modules that are cut into other numbers of shards, as the one with the most."""
    sharded = [module for module in modules if module._handle.uses_sharded_strategy]
    if not sharded:
        return workers
    widest = max(sharded, key=lambda module: module._handle.world_size)
    shards = np.array(ranks_of(widest._handle.process_group))
    between = getattr(widest, "_inter_node_pg", None)
    replicas = np.array([workers.rank] if between is None else ranks_of(between))
    ranks = replicas[:, None] + shards - workers.rank  # FSDP1 takes the same ranks of each machine
    return replace(workers, ranks=ranks, names=("replicate", "shard"), roles=("replica", "shard"))
