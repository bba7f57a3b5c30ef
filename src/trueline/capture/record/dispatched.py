"""Every call of an operator of ``c10d``, whoever makes it: Python, DDP's reducer in C++, DTensor, compiled code.

All collectives of a ``ProcessGroup`` pass through torch's dispatcher. Ours are kernels for ``BackendSelect``, the key
that is on in every thread and lies below autograd, the modes of others and ``__torch_dispatch__``: what is above has
seen the call already, and what is below is the backend itself. They are registered while somebody listens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch

from trueline.capture.record.functions import is_tracing

_KEY = "BackendSelect"

_SILENT = frozenset({"barrier", "monitored_barrier_", "check_for_nan"})
"""Operators that send no tensor."""


class Listener(Protocol):
    """Told of collectives; never raises."""

    def begins(self, op: Any, args: tuple[Any, ...], frame: FrameType | None) -> Any:
        """``op`` of ``c10d`` is about to be called, by C++ or by ``frame``, the innermost of Python. What is returned
        is given to ``has_begun``.
        """
        ...

    def has_begun(self, token: Any, result: Any) -> None:
        """The call has returned ``result``, the last of which is the boxed ``Work``: there may be more to wait for."""
        ...

    def has_ended(self, x: torch.Tensor) -> None:
        """Whoever was to wait for what a functional collective puts into ``x`` has done so."""
        ...


class Dispatched:
    """Tells listeners of the calls of all threads."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._libraries: list[torch.library.Library] = []
        self._under_way: list[None] = []

    def add(self, listener: Listener) -> None:
        """Tell ``listener`` from now on."""
        self._listeners.append(listener)
        if not self._libraries:
            self._register()

    def remove(self, listener: Listener) -> None:
        """Tell ``listener`` no more. With the last one the kernels go, unless a thread is inside one just now."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        if not self._listeners and not self._under_way:
            for library in self._libraries:
                library._destroy()
            self._libraries.clear()

    def _register(self) -> None:
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))  # type: ignore[attr-defined]
        library = torch.library.Library("c10d", "IMPL")
        for name in _operators():
            library.impl(
                name, self._of_collective(getattr(torch.ops.c10d, name).default, below), _KEY, with_keyset=True
            )
        functional = torch.library.Library("_c10d_functional", "IMPL")
        wait = torch.ops._c10d_functional.wait_tensor.default
        functional.impl("wait_tensor", self._of_wait(wait, below), _KEY, with_keyset=True)
        self._libraries = [library, functional]

    def _of_collective(self, op: Any, below: Any) -> Callable[..., Any]:
        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return op.redispatch(keyset & below, *args, **kwargs)
            frame = sys._getframe().f_back
            self._under_way.append(None)
            try:
                begun = [(listener, listener.begins(op, args, frame)) for listener in tuple(self._listeners)]
                result = op.redispatch(keyset & below, *args, **kwargs)
                for listener, token in begun:
                    listener.has_begun(token, result)
                return result
            finally:
                self._under_way.pop()

        return kernel

    def _of_wait(self, op: Any, below: Any) -> Callable[..., Any]:
        def kernel(keyset: Any, x: torch.Tensor) -> Any:
            result = op.redispatch(keyset & below, x)
            if not is_tracing():
                for listener in tuple(self._listeners):
                    listener.has_ended(result)
            return result

        return kernel


def _operators() -> list[str]:
    """Names of the operators of ``c10d`` that move tensors between the ranks of a group."""
    known = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")  # type: ignore[attr-defined]
    names = [name.removeprefix("c10d::") for name in known if name.startswith("c10d::")]
    return sorted(name for name in names if name not in _SILENT)


dispatched = Dispatched()
