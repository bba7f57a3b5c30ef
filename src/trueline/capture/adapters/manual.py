"""A plain module whose gradients the user averages: hooks that run when a gradient has accumulated, before any
reduction, and a look at what is then given into one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction, uncompiled
from trueline.capture.model import patches
from trueline.capture.model.layout import local
from trueline.capture.model.mesh import workers_in
from trueline.capture.model.untraced import Hook, in_backward
from trueline.capture.model.world import world_size
from trueline.capture.probes.gradients import GradientProbe

PRECEDENCE = 10

Pairs = list[tuple[Tensor, Tensor]]
"""Parameters and their gradients."""

_COMPARED = 16
"""First elements of each gradient by which the order in a flat buffer is known."""


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


class EnteringGradients:
    """Shows ``probe`` the gradients that the user's code gives into a reduction after a backward pass: themselves, or
    copies, one by one or flat, in the order of the parameters, in reverse, or by name. What is neither is not seen. In
    which order they are is known a step after it was looked at, as nothing waits for it.
    """

    def __init__(self, probe: GradientProbe, guard: Guard) -> None:
        self._probe = probe
        self._guard = guard
        self._thread = threading.get_ident()
        self._waiting: Pairs | None = None
        patches.backward.add(self._at_backward)
        for call in patches.reductions:
            call.add(self._at_reduction)

    def remove(self) -> None:
        """Stop looking."""
        self._waiting = None
        patches.backward.remove(self._at_backward)
        for call in patches.reductions:
            call.remove(self._at_reduction)

    def _at_backward(self, *args: Any, **kwargs: Any) -> None:
        if not in_backward():
            self._waiting = None

    def _at_reduction(self, group: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        probe = self._probe
        if not (probe.active and probe.has_local) or in_backward() or threading.get_ident() != self._thread:
            return
        with self._guard("gradients"), torch.no_grad():
            if group.size() == 1:
                return
            if self._waiting is None:
                params = probe.layout.params
                self._waiting = [(param, local(param.grad)) for param in params if param.grad is not None]
            for x in (tensors,) if isinstance(tensors, Tensor) else tensors:
                if x.is_floating_point() and x.layout == torch.strided and (pairs := self._about(x)):
                    probe.see("entered", pairs)

    def _about(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parameters whose gradients ``x`` holds, of those that wait, with their parts of it; they wait no more."""
        waiting = self._waiting or []
        index = next((n for n, (_, grad) in enumerate(waiting) if _is_of(grad, x)), None)
        if index is not None:
            param, _ = waiting.pop(index)
            return [(param, x)]
        if not x.is_contiguous():
            return []
        fitting = {order: pairs for order, pairs in self._orders(waiting).items() if _filled_by(pairs, x)}
        if not fitting:
            return []
        orders = {order: pairs[: _filled_by(pairs, x)] for order, pairs in fitting.items()}
        order = self._probe.flat_order
        if order is None and len(orders) > 1:
            self._probe.see_orders({order: _likeness(pairs, x) for order, pairs in orders.items()})
        pairs = orders.get(order or "", next(iter(orders.values())))
        parts = x.reshape(-1).split([grad.numel() for _, grad in pairs])
        param_ids = {id(param) for param, _ in pairs}
        self._waiting = [pair for pair in waiting if id(pair[0]) not in param_ids]
        return [(param, part) for (param, _), part in zip(pairs, parts, strict=True)]

    def _orders(self, waiting: Pairs) -> dict[str, Pairs]:
        """The gradients in the orders in which people lay them out."""
        names, index_of = self._probe.layout.names, self._probe.layout.index_of
        by_name = sorted(waiting, key=lambda pair: names[index_of[id(pair[0])]])
        return {"parameters": waiting, "reversed": waiting[::-1], "by name": by_name}


def _filled_by(pairs: Pairs, x: Tensor) -> int:
    """Number of the first gradients that fill ``x``; 0 where none do so."""
    num = num_elements = 0
    while num < len(pairs) and num_elements < x.numel():
        num_elements += pairs[num][1].numel()
        num += 1
    return num if num_elements == x.numel() else 0


def _likeness(pairs: Pairs, x: Tensor) -> Tensor:
    """Float64 [], squared cosine of the first elements of gradients and those at their places in ``x``: 1 where ``x``
    has them in this order, whatever it is multiplied by.
    """
    parts = x.reshape(-1).split([grad.numel() for _, grad in pairs])
    heads = torch.cat([grad.reshape(-1)[:_COMPARED] for _, grad in pairs]).double()
    heads_in_x = torch.cat([part[:_COMPARED] for part in parts]).double()
    return (heads @ heads_in_x).square() / (heads.square().sum() * heads_in_x.square().sum())


def _is_of(grad: Tensor, x: Tensor) -> bool:
    """True if ``x`` is this gradient, whatever view of it."""
    return grad is x or (grad.data_ptr() == x.data_ptr() and grad.numel() == x.numel() > 0)


class ManualAdapter(HookingAdapter):
    """Watches a module whose gradients are averaged by the user's own code between backward and the update."""

    name = "manual"

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(workers_in(process_group))
        self._model = model
        self.reduces_by_hand = True

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let accumulation hooks, and calls that reduce, report to ``probe``."""
        self.detach()
        self.handles = [*watch_accumulation(probe, guard, due=lambda: True), EnteringGradients(probe, guard)]

    def reduction(self) -> Reduction:
        """Unknown code; one rounding a worker and two for scaling, in the coarsest gradient dtype."""
        dtypes = {
            param.dtype for param in self._model.parameters() if param.requires_grad and param.is_floating_point()
        }
        dtype = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
        return Reduction(dtype=str(dtype), roundings=len(self.mesh.members) + 2, seen=False)
