"""The few places of torch that have no hook of their own. A seam is patched while someone listens and put back after.

``Tensor.backward`` tells the loss, ``GradScaler.scale`` the loss before it is scaled, ``DataLoader.__iter__`` the
epoch, ``destroy_process_group`` that no more sums can be made; under ``trueline run`` the constructors of optimizers
and DDP modules tell what is trained. A listener that raises is dropped: training never sees it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

_log = logging.getLogger("trueline")


class Seam:
    """One attribute of a class or module, wrapped so that listeners are called before it (or ``after``), with its
    arguments.
    """

    def __init__(self, owner: Any, name: str, *, after: bool = False) -> None:
        self._owner = owner
        self._after = after
        self._name = name
        self._original: Callable[..., Any] | None = None
        self._listeners: list[Callable[..., None]] = []

    def add(self, listener: Callable[..., None]) -> None:
        """Call ``listener(*args, **kwargs)`` before every call from now on."""
        if not self._listeners:
            self._patch()
        self._listeners.append(listener)

    def remove(self, listener: Callable[..., None]) -> None:
        """Stop calling ``listener``; the original comes back with the last one, if nobody patched over ours."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        ours = getattr(self._owner, self._name)
        if not self._listeners and self._original is not None and getattr(ours, "_trueline", False):
            setattr(self._owner, self._name, self._original)
            self._original = None

    def _patch(self) -> None:
        if self._original is not None:
            return
        original = self._original = getattr(self._owner, self._name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self._after:
                result = original(*args, **kwargs)
                self._tell(args, kwargs)
                return result
            self._tell(args, kwargs)
            return original(*args, **kwargs)

        wrapped._trueline = True  # type: ignore[attr-defined]
        setattr(self._owner, self._name, wrapped)

    def _tell(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(*args, **kwargs)
            except Exception:
                _log.exception("trueline: a listener on %s failed and was dropped", self._name)
                self._listeners.remove(listener)


backward = Seam(Tensor, "backward")
scale = Seam(torch.amp.GradScaler, "scale")
loader_iter = Seam(DataLoader, "__iter__")
destroy_groups = Seam(torch.distributed, "destroy_process_group")
module_call = Seam(torch.nn.Module, "_call_impl")
optimizer_init = Seam(torch.optim.Optimizer, "__init__", after=True)
ddp_init = Seam(torch.nn.parallel.DistributedDataParallel, "__init__", after=True)
