"""One process: what the optimizer receives is the worker's own gradient, so no hook is needed."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from trueline.capture.adapters.base import Guard, HookingAdapter
from trueline.capture.model.mesh import workers_in
from trueline.capture.probes.gradients import GradientProbe

PRECEDENCE = 0


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> SingleAdapter:
    """The adapter of any model in one process."""
    return SingleAdapter(process_group)


class SingleAdapter(HookingAdapter):
    """Watches a model trained by one process: everything that does not need two workers."""

    name = "single"

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(workers_in(process_group))

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Nothing to hook: gradients are read just before the update."""
        probe.alone = True
