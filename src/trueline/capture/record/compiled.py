"""Functions and modules that ``torch.compile`` made, called from eager code while a step is recorded.

Dynamo traces modes on torch functions into the graph, so with Trueline's mode on it would compile another graph. Every
call of a compiled function sets Dynamo's frame callback just before and resets it just after: there Trueline's mode is
taken off and put on again, and the call is recorded as a whole.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from trueline.capture.model.patches import Patch, calling_of
from trueline.capture.record.guard import Fails, Guard

_CALLS = "_TorchDynamoContext.__call__."
"""Prefix of the qualified name of the wrapper of a compiled function."""


class CompiledCalls:
    """``enter(function, args, kwargs, frame)`` is called before a compiled function runs, with the frame that calls it,
    and returns a token; ``leave(token, result)`` after that, with None where it raised.
    """

    def __init__(self, *, enter: Callable[..., Any], leave: Callable[[Any, Any], None], session: Fails) -> None:
        self._enter = enter
        self._leave = leave
        self._session = session
        self._patch: Patch | None = None
        self._compile = Patch(torch, "compile", calling_of(self._compiled))
        self._inside: list[tuple[FrameType, Any]] = []

    def attach(self) -> None:
        """Begin to observe; where nothing was compiled in this process, once something is."""
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if hasattr(dynamo, "_maybe_set_eval_frame"):
            self._patch = Patch(dynamo, "_maybe_set_eval_frame", calling_of(self._set_callback))
            self._patch.install()
        elif dynamo is None:
            self._compile.install()

    def detach(self) -> None:
        self._compile.remove()
        if self._patch is not None:
            self._patch.remove()
        self._inside.clear()

    def _compiled(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self._patch is None:
            self.attach()
        return result

    def _set_callback(self, original: Callable[[Any], Any], callback: Any) -> Any:
        frame = sys._getframe(2)
        if self._inside and self._inside[-1][0] is frame:
            _, token = self._inside.pop()
            with Guard(self._session):
                self._leave(token, frame.f_locals.get("result"))
        elif callback not in (None, False) and frame.f_code.co_qualname.startswith(_CALLS):
            with Guard(self._session):
                wrapper_locals = frame.f_locals
                token = self._enter(
                    _innermost(wrapper_locals["fn"]), wrapper_locals["args"], wrapper_locals["kwargs"], frame.f_back
                )
                self._inside.append((frame, token))
        return original(callback)  # no code of Trueline may run after it: Dynamo would compile it


def owner_of(func: Any) -> nn.Module | None:
    """The module that was compiled as a whole; None for a function."""
    owner = getattr(func, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def name_of(func: Any) -> str:
    """Name of a compiled function."""
    return getattr(func, "__name__", type(func).__name__)


def path_of(func: Any) -> str:
    """Import path of a compiled function, or of the class of a compiled module."""
    owner = owner_of(func)
    target = func if owner is None and hasattr(func, "__qualname__") else type(func if owner is None else owner)
    return f"{target.__module__}.{target.__qualname__}"


def _innermost(func: Any) -> Any:
    """The user's own function, inside decorators and ``functools.partial``."""
    func = inspect.unwrap(func)
    return _innermost(func.func) if isinstance(func, functools.partial) else func
