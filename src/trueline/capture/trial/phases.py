"""A job in which one phase of a step is held still, or half of the model is computed elsewhere.

==============  ==================================================================================================
kind            what
==============  ==================================================================================================
``fixed``       no update moves a weight: forward and backward only
``plain``       each parameter moves along its gradient, as far as its optimizer moved it
``frozen``      no update moves the weights of a ``half`` of the model, and their gradients are 0 for it
``elsewhere``   a ``half`` computes on the CPU, or in float64 where it is there already; '' is the whole model
``sham``        weights are kept and put back as the optimizer made them
==============  ==================================================================================================

Halves are of the model's parts in their order: the items of its longest lists of modules, and what stands beside these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueline.capture.model import patches
from trueline.capture.model.layout import unwrap
from trueline.capture.model.untraced import Hook
from trueline.capture.trial.remedies import computing

ELSEWHERE = "phase:elsewhere"
"""Word that parts are computed elsewhere, before ``cpu`` or ``float64``."""
_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class Phase:
    """Holds a phase of each step; ``tell`` is given words about the model."""

    def __init__(self, kind: str, *, half: str = "", tell: Callable[[str], None]) -> None:
        self._kind, self._half, self._tell = kind, half, tell
        self._frozen: set[int] | None = None
        self._weights_before: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def install(self) -> None:
        """Wait for the model that trains."""
        patches.module_call.add(self._at_call, keep=True)
        if self._kind != "elsewhere":
            register_optimizer_step_pre_hook(Hook(self._keep))
            register_optimizer_step_post_hook(Hook(self._put_back))

    def _at_call(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not torch.is_grad_enabled() or not unwrap(model).training:
            return
        patches.module_call.remove(self._at_call)
        parts = list(parts_of(unwrap(model)))
        if self._half and len(parts) < 2:
            raise SystemExit("trueline: the model has one part, and no halves.")
        middle = (len(parts) + 1) // 2
        half = {"first": parts[:middle], "second": parts[middle:]}.get(self._half, parts)
        if self._kind == "frozen":
            self._frozen = {id(param) for part in half for param in part.parameters()}
        if self._kind == "elsewhere":
            for part in half:
                device = next((x.device.type for x in part.parameters()), "cpu")
                kind = "float64" if device == "cpu" else "cpu"
                self._tell(f"{ELSEWHERE} {kind}")
                part.forward = computing(part, part.forward, kind)  # type: ignore[method-assign]

    def _keep(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Copy the weights before an update, of the parameters that are held still."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if self._kind == "frozen":
            params = [param for param in params if self._frozen and id(param) in self._frozen]
            for param in params:
                if param.grad is not None:
                    param.grad.zero_()
        self._weights_before[id(optimizer)] = [(param, param.detach().clone()) for param in params]

    @torch.no_grad()
    def _put_back(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for param, before in self._weights_before.pop(id(optimizer), ()):
            if self._kind == "sham":
                param.copy_(param.clone())
            elif self._kind == "plain":
                _move_plainly(param, before)
            else:
                param.copy_(before)


def parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """The parts of a model in their order: items of lists of modules, and modules that hold no such list."""
    for child in model.children():
        if isinstance(child, _LISTS):
            yield from (item for item in child.children() if next(item.parameters(), None) is not None)
        elif any(isinstance(inner, _LISTS) and len(inner) > 1 for inner in child.modules()):
            yield from parts_of(child)
        elif next(child.parameters(), None) is not None:
            yield child


def _move_plainly(param: Tensor, before: Tensor) -> None:
    """Along the gradient, as far as it was moved; where that is no number, it is not moved."""
    gradient = param.grad
    far = float((param - before).norm())
    norm = 0.0 if gradient is None else float(gradient.norm())
    param.copy_(before)
    if gradient is not None and 0 < norm < float("inf") and far < float("inf"):
        param.sub_(gradient.to(param.dtype), alpha=far / norm)
