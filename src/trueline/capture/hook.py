"""A hook that survives what people do to modules: ``copy.deepcopy`` (EMA) and ``torch.save`` of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """Calls through to Trueline. Its copies, and what is unpickled, call nothing: they belong to another model."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call through."""
        return None if self.call is None else self.call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return (Hook, ())
