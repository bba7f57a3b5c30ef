"""Parts of a model that a script calls one by one, where it never calls the model: two towers, or an encoder and a
decoder, by methods of the model or by ``ddp.module``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trueline.capture.model import patches
from trueline.capture.model.untraced import forward_module, in_transform

PATIENCE = 16
"""Updates for which calls of modules are looked at to find a further part: each costs a microsecond."""


class CalledParts:
    """Hooks the outermost parts of ``whole`` that are called, by ``hook``, which returns handles. Calls of modules
    inside of these, or while ``whole`` itself runs, are none.
    """

    def __init__(self, whole: nn.Module, hook: Callable[[nn.Module], list[Any]]) -> None:
        self._hook = hook
        self._to_look_at = {id(module) for module in whole.modules()} - {id(whole)}
        self._handles: list[Any] = []
        self._updates_left = PATIENCE
        self.whole_runs = False
        patches.module_call.add(self._at_call)

    def add(self, part: nn.Module) -> None:
        """``part`` is about to be called."""
        self._to_look_at -= {id(module) for module in part.modules()}
        # what is compiled in place takes no hook
        if forward_module(part) is not None:
            self._handles += self._hook(part)

    def updated(self) -> None:
        """A step has ended."""
        self.whole_runs = False
        self._updates_left -= 1
        if self._updates_left == 0:
            patches.module_call.remove(self._at_call)

    def remove(self) -> None:
        """Take all hooks off."""
        patches.module_call.remove(self._at_call)
        for handle in self._handles:
            handle.remove()

    def _at_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if id(module) in self._to_look_at and torch.is_grad_enabled() and not (self.whole_runs or in_transform()):
            self.add(module)
