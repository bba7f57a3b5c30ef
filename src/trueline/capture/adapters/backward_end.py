"""Looks at all gradients at once when backward ends, in front of DDP's own last callback.

DDP reduces copies of the gradients, in its buckets, and writes the means back into ``.grad`` in a callback that the
engine runs when backward is done. Callbacks run in the order in which they were queued; ours is queued at the first
gradient of backward, that of the module's output, and so finds the worker's own gradients in ``.grad`` still. Where
backward runs before the module has an output (Lightning's manual optimization calls a whole training step inside of
it), or the output has no tensors, the first gradient of a parameter is looked for. Nothing is registered with DDP: its
hooks, buckets and kernels are what they are without Trueline. Not so with ``gradient_as_bucket_view``, where ``.grad``
is the bucket; there only what earlier reductions of the step have left in ``.grad`` is looked at, as backward begins.
"""

from __future__ import annotations

import functools
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
    """Shows ``probe`` the parameters' gradients before and, where it asks for them, after the reduction, and what the
    step's earlier reductions have left. With ``only_left`` it shows that alone.

    ``forward`` is the module whose call starts a training step, ``reduced`` the parameters whose gradients are reduced,
    ``due`` whether the coming backward is one that reduces (False under ``no_sync``).
    """

    def __init__(
        self, forward: nn.Module, *, reduced: list[nn.Parameter], due: Callable[[], bool], only_left: bool = False
    ) -> None:
        self.probe: GradientProbe | None = None
        self.guard: Guard | None = None
        self._reduced = reduced
        self._due = due
        self._only_left = only_left
        self._queued = self._inside = self._ran_inside = False
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
        self._inside, self._ran_inside = not in_backward(), False

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        self._inside = False
        if not self._ran_inside or any(True for _ in differentiable(output)):
            self._await_gradient(output)

    def _at_backward(self, *args: Any, **kwargs: Any) -> None:
        if self._inside:
            self._ran_inside = True
            self._await_gradient(None)

    def _await_gradient(self, output: Any) -> None:
        """Be called at the first gradient of ``output``, or of a parameter where nothing can come through that."""
        probe, guard = self.probe, self.guard
        if probe is None or guard is None or not (probe.active and torch.is_grad_enabled()):
            return
        # A pipeline decides only at each backward whether that reduces.
        due = False if self._only_left else None if in_pipeline() else self._due()
        if due is False and not probe.has_local:
            return
        with guard("gradients"):
            self._queued = False
            self._forget_parameters()
            tensors = list(differentiable(output))
            look = Hook(functools.partial(self._at_first_gradient, due))
            for tensor in tensors:
                tensor.register_hook(look)
            if not tensors:
                self._at_params = [param.register_hook(look) for param in self._reduced]

    def _forget_parameters(self) -> None:
        for handle in self._at_params:
            handle.remove()
        self._at_params = []

    def _at_first_gradient(self, due: bool | None, gradient: Tensor) -> None:
        probe, guard = self.probe, self.guard
        if self._queued or probe is None or guard is None:
            return
        if probe.has_local:
            with guard("gradients"), torch.no_grad():
                probe.before_backward((param, param.grad) for param in self._reduced if param.grad is not None)
        if not (self._due() if due is None else due):
            self._forget_parameters()
            return
        self._queued = True
        _engine.queue_callback(Hook(self._before_reduction))

    def _before_reduction(self) -> None:
        probe, guard = self.probe, self.guard
        if not self._queued or probe is None or guard is None or not probe.active:
            return
        self._queued = False
        with guard("gradients"), torch.no_grad():
            self._forget_parameters()
            present = [(param, param.grad) for param in self._reduced if param.grad is not None]
            absent = [param for param in self._reduced if param.grad is None]
            probe.see("local", present, zero=absent)
            if probe.wants_reduced:
                _engine.queue_callback(Hook(self._after_reduction))

    def _after_reduction(self) -> None:
        probe, guard = self.probe, self.guard
        if probe is not None and guard is not None and probe.active:
            with guard("gradients"), torch.no_grad():
                probe.see("reduced", [(param, param.grad) for param in self._reduced if param.grad is not None])
