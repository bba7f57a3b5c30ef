"""Looks at all gradients at once when backward ends, in front of DDP's own last callback.

DDP reduces copies of the gradients, in its buckets, and writes the means back into ``.grad`` in a callback that the
engine runs when backward is done. Callbacks run in the order in which they were queued; ours is queued at the first
gradient of backward, that of the module's output, and so finds the worker's own gradients in ``.grad`` still. Nothing
is registered with DDP: its hooks, buckets and kernels are what they are without Trueline. Not so with
``gradient_as_bucket_view``, where ``.grad`` is the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import Hook
from trueline.capture.probes.gradients import GradientProbe

_engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]


class BackwardEnd:
    """Shows ``probe`` the parameters' gradients before and, where it asks for them, after the reduction.

    ``forward`` is the module whose call starts a training step, ``reduced`` the parameters whose gradients are reduced,
    ``due`` whether the coming backward is one that reduces (False under ``no_sync``).
    """

    def __init__(self, forward: nn.Module, *, reduced: list[nn.Parameter], due: Callable[[], bool]) -> None:
        self.probe: GradientProbe | None = None
        self.guard: Guard | None = None
        self._reduced = reduced
        self._due = due
        self._queued = False
        self._handle = forward.register_forward_hook(Hook(self._after_forward))

    def remove(self) -> None:
        """Stop looking."""
        self.probe = None
        self._handle.remove()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        probe, guard = self.probe, self.guard
        if probe is None or guard is None or not (probe.active and torch.is_grad_enabled() and self._due()):
            return
        with guard("gradients"):
            self._queued = False
            tensors = list(differentiable(output))
            for tensor in tensors or self._reduced:
                tensor.register_hook(Hook(self._at_first_gradient))

    def _at_first_gradient(self, gradient: Tensor) -> None:
        if not self._queued:
            self._queued = True
            _engine.queue_callback(Hook(self._before_reduction))

    def _before_reduction(self) -> None:
        probe, guard = self.probe, self.guard
        if not self._queued or probe is None or guard is None or not probe.active:
            return
        self._queued = False
        with guard("gradients"), torch.no_grad():
            there = [(param, param.grad) for param in self._reduced if param.grad is not None]
            absent = [param for param in self._reduced if param.grad is None]
            probe.see("local", there, zero=absent)
            if probe.wants_reduced:
                _engine.queue_callback(Hook(self._after_reduction))

    def _after_reduction(self) -> None:
        probe, guard = self.probe, self.guard
        if probe is not None and guard is not None and probe.active:
            with guard("gradients"), torch.no_grad():
                probe.see("reduced", [(param, param.grad) for param in self._reduced if param.grad is not None])
