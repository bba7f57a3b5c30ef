"""Gradients during backward: hooks on the tensors that recorded calls took and returned.

Hooks on tensors see a gradient when all of it has been added up, and leave the order of adding as it is; the backward
hooks of modules put an identity into the graph and so change that order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from trueline.capture.record.calls import Call

Places = list[Any]
"""A call and a slot of it, the next call and slot, and so on: flat, as pairs are objects more to collect."""


class GradientHooks:
    """Calls ``arrived(places, gradient)`` when the gradient with respect to a watched tensor is complete.

    One hook a tensor, however many calls it belongs to; hooks on tensors inside the graph go away with it, those on
    leaves with ``detach``.
    """

    def __init__(self, arrived: Callable[[Places, Tensor], None]) -> None:
        self._arrived = arrived
        self._hooked: dict[int, _Arrived] = {}
        self._handles: list[Any] = []

    def watch(self, x: Tensor, call: Call, slot: str) -> None:
        """The gradient with respect to ``x`` is that of a slot of a call; nothing happens where there will be none."""
        if not x.requires_grad:
            return
        known = self._hooked.get(id(x))
        if known is not None and known.tensor() is x and known.version == x._version:
            known.places += (call, slot)
            return
        hook = self._hooked[id(x)] = _Arrived(self, x, [call, slot])
        handle = x.register_hook(hook)
        if x.is_leaf:
            self._handles.append(handle)

    def detach(self) -> None:
        """No gradient is of interest any more, also of graphs that live on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self._arrived = _ignored


class _Arrived:
    """The hook; a copy of the tensor (``deepcopy``) gets none."""

    __slots__ = ("hooks", "places", "tensor", "version")

    def __init__(self, hooks: GradientHooks, x: Tensor, places: Places) -> None:
        self.hooks, self.places = hooks, places
        self.tensor, self.version = weakref.ref(x), x._version

    def __call__(self, gradient: Tensor) -> None:
        self.hooks._arrived(self.places, gradient)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[[Tensor], None]:
        return _silent


def _silent(gradient: Tensor) -> None:
    """The hook of a copy."""


def _ignored(places: Places, gradient: Tensor) -> None:
    """Nobody listens."""
