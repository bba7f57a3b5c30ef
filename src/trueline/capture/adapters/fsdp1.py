"""FSDP1 (``FullyShardedDataParallel``): what its workers read and lose is compared, and so is every value that two of
them hold alike. Its gradients, which it flattens and reduces by itself, are not watched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from trueline.capture.adapters.base import Guard, Reduction
from trueline.capture.adapters.manual import watch_accumulation
from trueline.capture.probes.gradients import GradientProbe


def fsdp1_adapter(model: nn.Module, process_group: dist.ProcessGroup | None) -> Fsdp1Adapter | None:
    """The adapter of a model that has a part inside ``FullyShardedDataParallel``."""
    handles = list(_handles(model))
    return Fsdp1Adapter(handles, process_group) if handles else None


class Fsdp1Adapter:
    """Watches one model inside FSDP1, of any sharding strategy."""

    name = "fsdp1"
    local_is_grad = False
    alike = True
    axes = 0

    def __init__(self, handles: list[Any], process_group: dist.ProcessGroup | None) -> None:
        sharded = [handle for handle in handles if handle.uses_sharded_strategy]
        widest = max(sharded, key=lambda handle: handle.world_size, default=None)
        self.shards: int = widest.world_size if widest is not None else 1
        self.shard: int | None = widest.rank if widest is not None else None
        self.process_group = process_group
        self.notes: list[str] = [
            "FullyShardedDataParallel (FSDP1): samples, losses and what ranks hold alike are compared; gradients are "
            "not watched. fully_shard (FSDP2) is watched whole."
        ]
        self._handles: list[Any] = []

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let accumulation hooks report what ranks hold whole beside the shards."""
        self.detach()
        probe.blind = True
        self._handles = watch_accumulation(probe, guard, due=lambda: True, only=probe.layout.whole)

    def reduction(self) -> Reduction:
        """FSDP's own, which is not seen."""
        return Reduction(hook="", known=True, lossy=False, dtype="torch.float32", roundings=0, seen=False)

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _handles(model: nn.Module) -> Iterator[Any]:
    """What FSDP1 keeps of each parameter that it has flattened (private: ``_flat_param.FlatParamHandle``)."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules() if fsdp is not None else ():
        handle = getattr(module, "_handle", None) if isinstance(module, fsdp.FullyShardedDataParallel) else None
        if handle is not None:
            yield handle
