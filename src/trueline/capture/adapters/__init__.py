"""Where each framework lets a worker's gradient be seen before it is reduced. The first adapter that fits is taken."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from trueline.capture.adapters.base import Adapter


def choose_adapter(model: nn.Module, process_group: dist.ProcessGroup | None = None) -> Adapter:
    """The adapter for ``model``: DDP, FSDP2, a plain module among several workers, or one process."""
    from trueline.capture.adapters.ddp import DdpAdapter
    from trueline.capture.adapters.fsdp2 import Fsdp2Adapter
    from trueline.capture.adapters.manual import ManualAdapter
    from trueline.capture.adapters.single import SingleAdapter

    wrapped = model
    while not isinstance(wrapped, nn.parallel.DistributedDataParallel) and hasattr(wrapped, "_orig_mod"):
        wrapped = wrapped._orig_mod  # type: ignore[assignment]
    if isinstance(wrapped, nn.parallel.DistributedDataParallel):
        taken: DdpAdapter | None = wrapped.__dict__.pop("_trueline_adapter", None)
        adapter = taken if taken is not None else DdpAdapter(wrapped)
        # Workers whose gradients should be averaged together, where the user says so: DDP may have been given others.
        adapter.process_group = process_group or adapter.process_group
        return adapter
    if any(hasattr(module, "_get_fsdp_state") for module in wrapped.modules()):
        return Fsdp2Adapter(wrapped, process_group)
    initialized = dist.is_available() and dist.is_initialized()
    if initialized and dist.get_world_size(process_group) > 1:
        return ManualAdapter(wrapped, process_group)
    return SingleAdapter(wrapped)
