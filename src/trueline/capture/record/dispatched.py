"""Observes every call of an operator of ``c10d``: from Python, DDP's reducer in C++, DTensor and compiled code.

All collectives of a ``ProcessGroup`` pass through torch's dispatcher. Trueline registers kernels for the dispatch key
``BackendSelect``, which is enabled in every thread and comes after autograd, modes and ``__torch_dispatch__`` and
directly before the backend. They are registered only while there is a listener.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch

from trueline.capture.record.functions import is_tracing

_KEY = "BackendSelect"

_SILENT = frozenset({"barrier", "monitored_barrier_", "check_for_nan"})
"""Operators that send no tensor."""


class OperationListener(Protocol):
    """Is called at collectives; must not raise."""

    def begins(self, op: Any, args: tuple[Any, ...], frame: FrameType | None) -> Any:
        """``op`` of ``c10d`` is about to be called, by C++ or by ``frame``, the innermost Python frame. Returns the
        token that is passed to ``has_begun``.
        """
        ...

    def has_begun(self, token: Any, result: Any) -> None:
        """The call has returned ``result``, whose last element is the boxed ``Work``; the collective may still run."""
        ...

    def has_ended(self, x: torch.Tensor) -> None:
        """``wait_tensor`` has returned for ``x``, the result of a functional collective."""
        ...


class Dispatched:
    """Calls listeners for the collectives of all threads."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[OperationListener]] = []  # what belongs to a model ends with it
        self._libraries: list[torch.library.Library] = []
        self._under_way: list[None] = []

    def add(self, listener: OperationListener) -> None:
        """Call ``listener`` from now on."""
        self._refs.append(weakref.ref(listener))
        if not self._libraries:
            self._register()

    def remove(self, listener: OperationListener) -> None:
        """Stop calling ``listener``. Kernels are removed with the last one, unless a thread is inside one just now."""
        self._refs = [ref for ref in self._refs if ref() is not None and ref() is not listener]
        if not self._refs and not self._under_way:
            for library in self._libraries:
                library._destroy()
            self._libraries.clear()

    def _listeners(self) -> list[OperationListener]:
        return [listener for ref in self._refs if (listener := ref()) is not None]

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
                tokens = [(listener, listener.begins(op, args, frame)) for listener in self._listeners()]
                result = op.redispatch(keyset & below, *args, **kwargs)
                for listener, token in tokens:
                    listener.has_begun(token, result)
                return result
            finally:
                self._under_way.pop()

        return kernel

    def _of_wait(self, op: Any, below: Any) -> Callable[..., Any]:
        def kernel(keyset: Any, x: torch.Tensor) -> Any:
            result = op.redispatch(keyset & below, x)
            if not is_tracing():
                for listener in self._listeners():
                    listener.has_ended(result)
            return result

        return kernel


def _operators() -> list[str]:
    """Names of the operators of ``c10d`` that send tensors between the ranks of a group."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")  # type: ignore[attr-defined]
    names = [name.removeprefix("c10d::") for name in registered if name.startswith("c10d::")]
    return sorted(name for name in names if name not in _SILENT)


dispatched = Dispatched()
