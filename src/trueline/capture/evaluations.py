"""Which passes are the step's own, where an optimizer evaluates the loss again before it is done (LBFGS, SAM)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor

from trueline.capture.hook import skipped

_LOOKED_AT = 4
"""Parameters that are looked at: an optimizer moves all, a layer that keeps its own norm (``max_norm``) its own."""


class Evaluations:
    """Tells the first evaluation of a step, at the parameters as the step found them, from those at others: of a
    closure by its calls, and anywhere by parameters that all were changed in place since the step's first forward pass.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._calls = 0
        self._versions: list[int] = []
        self._moved = False

    def is_first(self) -> bool:
        """Whether what is computed now is the first evaluation, or a micro-batch of it."""
        return self._calls <= 1 and not self._moved

    def look(self, params: Sequence[Tensor]) -> None:
        """A training forward pass begins."""
        looked_at = params[:: max(1, len(params) // _LOOKED_AT)]
        versions = [param._version for param in looked_at]
        if len(versions) != len(self._versions):
            self._versions = versions
        elif versions and all(new != old for new, old in zip(versions, self._versions, strict=True)):
            self._moved = True

    def counting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Arguments of an optimizer's ``step`` (with itself) whose closure counts its calls; None where it is none, or
        an object that may have more to it than to be called.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not isinstance(closure, (FunctionType, MethodType, functools.partial)):
            return None
        counted = self._counted(closure)
        return (args, kwargs | {"closure": counted}) if "closure" in kwargs else ((args[0], counted, *args[2:]), kwargs)

    def _counted(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure)
        @skipped
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return closure(*args, **kwargs)

        return evaluated
