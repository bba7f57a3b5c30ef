"""A plain module whose gradients the user averages: hooks that run when a gradient has accumulated, before any
reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction, uncompiled
from trueline.capture.model.layout import local
from trueline.capture.model.mesh import workers_in
from trueline.capture.model.untraced import Hook
from trueline.capture.model.world import world_size
from trueline.capture.probes.gradients import GradientProbe

PRECEDENCE = 10


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> ManualAdapter | None:
    """The adapter of any model among several workers."""
    return ManualAdapter(uncompiled(model), process_group) if world_size(process_group) > 1 else None


def watch_accumulation(
    probe: GradientProbe, guard: Guard, *, due: Callable[[], bool], only: Sequence[int] | None = None
) -> list[Any]:
    """Register a ``post_accumulate_grad`` hook on every watched parameter (``only``: on those in these places), in
    front of the user's own, and return handles.

    ``due`` says whether this backward is the one that is reduced (False under ``no_sync``).
    """

    def look(param: Tensor) -> None:
        if probe.active and param.grad is not None and due():
            with guard("gradients"):
                probe.see("local", [(param, local(param.grad))])

    handles = []
    for param in probe.layout.params if only is None else [probe.layout.params[index] for index in only]:
        if not param.requires_grad:  # frozen for now: it has no gradient, and takes no hook
            continue
        handles.append(first_hook(param, look))
    return handles


def first_hook(param: Tensor, look: Callable[[Tensor], None]) -> Any:
    """The handle of a ``post_accumulate_grad`` hook in front of all others, which may take the gradient away."""
    handle = param.register_post_accumulate_grad_hook(Hook(look))
    hooks: Any = getattr(param, "_post_accumulate_grad_hooks", None)
    if hooks is not None and len(hooks) > 1:
        hooks.move_to_end(next(reversed(hooks)), last=False)
    return handle


class ManualAdapter(HookingAdapter):
    """Watches a module whose gradients are averaged by the user's own code between backward and the update."""

    name = "manual"

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(workers_in(process_group))
        self._model = model
        self.reduces_by_hand = True

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let accumulation hooks report to ``probe``."""
        self.detach()
        self.handles = watch_accumulation(probe, guard, due=lambda: True)

    def reduction(self) -> Reduction:
        """Unknown code; one rounding a worker and two for scaling, in the coarsest gradient dtype."""
        dtypes = {
            param.dtype for param in self._model.parameters() if param.requires_grad and param.is_floating_point()
        }
        dtype = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
        return Reduction(dtype=str(dtype), roundings=len(self.mesh.members) + 2, seen=False)
