"""Looks at all gradients at once when backward ends, in front of DDP's own last callback.

DDP reduces copies of the gradients, in its buckets, and writes the means back into ``.grad`` in a callback that the
engine runs when backward is done. Callbacks run in the order in which they were queued; ours is queued at the first
gradient of backward, that of the module's output, and so finds the worker's own gradients in ``.grad`` still. Where
backward runs before the module has an output (Lightning's manual optimization calls a whole training step inside of
it), or the output has no tensors, the first gradient of a parameter is looked for. Nothing is registered with DDP: its
hooks, buckets and kernels are what they are without Trueline. Not so with ``gradient_as_bucket_view``, where ``.grad``
is the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import Hook, in_backward
from trueline.capture.model.world import in_pipeline
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
        self._queued = self._inside = False
        self._handles = [
            forward.register_forward_pre_hook(Hook(self._before_forward)),
            forward.register_forward_hook(Hook(self._after_forward)),
        ]
        self._at_params: list[Any] = []
        patches.backward.add(self._at_backward)

    def remove(self) -> None:
        """Stop looking."""
        self.probe = None
        patches.backward.remove(self._at_backward)
        self._forget_parameters()
        for handle in self._handles:
            handle.remove()

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        self._inside = not in_backward()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        self._inside = False
        self._await_gradient(output)

    def _at_backward(self, *args: Any, **kwargs: Any) -> None:
        if self._inside:
            self._await_gradient(None)

    def _await_gradient(self, output: Any) -> None:
        """Be called at the first gradient of ``output``, or of a parameter where nothing can come through that."""
        probe, guard = self.probe, self.guard
        if probe is None or guard is None or not (probe.active and torch.is_grad_enabled()):
            return
        staged = in_pipeline()  # which decides only at each backward whether that reduces
        if not (staged or self._due()):
            return
        with guard("gradients"):
            self._queued = False
            self._forget_parameters()
            tensors = list(differentiable(output))
            look = Hook(self._at_last_micro_batch if staged else self._at_first_gradient)
            for tensor in tensors:
                tensor.register_hook(look)
            if not tensors:
                self._at_params = [param.register_hook(look) for param in self._reduced]

    def _forget_parameters(self) -> None:
        for handle in self._at_params:
            handle.remove()
        self._at_params = []

    def _at_last_micro_batch(self, gradient: Tensor) -> None:
        if self._due():
            self._at_first_gradient(gradient)

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
            self._forget_parameters()
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
