"""Gradients during backward: hooks on the tensors that recorded calls took and returned.

Hooks on tensors see a gradient when all of it has been added up, and leave the order of adding as it is; the backward
hooks of modules put an identity into the graph and so change that order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from trueline.capture.record.buffer import Call

Place = tuple[Call, str]


class GradientHooks:
    """Calls ``arrived(places, gradient)`` when the gradient with respect to a watched tensor is complete.

    One hook a tensor, however many calls it belongs to; hooks on tensors inside the graph go away with it, those on
    leaves with ``detach``.
    """

    def __init__(self, arrived: Callable[[list[Place], Tensor], None]) -> None:
        self._arrived = arrived
        self._hooked: dict[int, tuple[weakref.ref[Tensor], int, list[Place]]] = {}
        self._handles: list[Any] = []

    def watch(self, x: Tensor, place: Place) -> None:
        """The gradient with respect to ``x`` is that of ``place``; nothing happens where there will be none."""
        if not x.requires_grad:
            return
        known = self._hooked.get(id(x))
        if known is not None and known[0]() is x and known[1] == x._version:
            known[2].append(place)
            return
        places = [place]
        handle = x.register_hook(_Arrived(self, places))
        if x.is_leaf:
            self._handles.append(handle)
        self._hooked[id(x)] = (weakref.ref(x), x._version, places)

    def detach(self) -> None:
        """No gradient is of interest any more, also of graphs that live on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self._arrived = _ignored


class _Arrived:
    """The hook; a copy of the tensor (``deepcopy``) gets none."""

    def __init__(self, hooks: GradientHooks, places: list[Place]) -> None:
        self._hooks, self._places = hooks, places

    def __call__(self, gradient: Tensor) -> None:
        self._hooks._arrived(self._places, gradient)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Arrived:
        return _Arrived(GradientHooks(_ignored), [])


def _ignored(places: list[Place], gradient: Tensor) -> None:
    """Nobody listens."""
