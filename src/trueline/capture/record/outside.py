"""Functions that make a tensor of what is none, and that no mode on torch functions is asked about."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any

import torch

from trueline.capture.model.patches import Patch, calling_of, unseen
from trueline.capture.record.functions import Function, is_tracing

_NAMES = ("from_numpy", "frombuffer", "from_dlpack")

Record = Callable[[Function, Callable[[], Any], tuple[Any, ...], dict[str, Any], FrameType], Any]


class OutsideCalls:
    """Hands every call of them to ``record(function, call, args, kwargs, frame)``, which must return what ``call()``
    does, while it is attached.
    """

    def __init__(self, record: MethodType) -> None:
        # what is put in torch's place would keep the owner, and the model that it has
        self._record: Callable[[], Record | None] = weakref.WeakMethod(record)
        self._functions: dict[Any, Function] = {}
        names = (name for name in _NAMES if hasattr(torch, name))
        self._patches = [Patch(torch, name, calling_of(self._run)) for name in names]

    def attach(self) -> None:
        for patch in self._patches:
            patch.install()

    def detach(self) -> None:
        for patch in self._patches:
            patch.remove()

    @unseen
    def _run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        record = self._record()
        if record is None or is_tracing():
            return original(*args, **kwargs)
        function = self._functions.get(original)
        if function is None:
            function = self._functions[original] = Function(original)
        return record(function, lambda: original(*args, **kwargs), args, kwargs, sys._getframe(2))
