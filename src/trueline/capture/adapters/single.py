"""One process: what the optimizer receives is the worker's own gradient, so no hook is needed."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from trueline.capture.adapters.base import Guard, Reduction
from trueline.capture.model.mesh import workers_in
from trueline.capture.probes.gradients import GradientProbe

PRECEDENCE = 0


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> SingleAdapter:
    """The adapter of any model in one process."""
    return SingleAdapter(process_group)


class SingleAdapter:
    """Watches a model trained by one process: everything that does not need two workers."""

    name = "single"

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self.mesh = workers_in(process_group)
        self.notes: list[str] = []

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Nothing to hook: gradients are read just before the update."""
        probe.alone = True

    def reduction(self) -> Reduction:
        """No reduction takes place."""
        return Reduction(hook="", known=True, lossy=False, dtype="torch.float32", roundings=0)

    def detach(self) -> None:
        """Nothing to undo."""
