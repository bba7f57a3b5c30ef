"""What is known of objects of the user's, for as long as they live."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class ObjectTable(Generic[Key, Value]):
    """Values by object, which is known by its identity: a class of the user's may have an ``__eq__`` and no hash.

    For optimizers, modules and schedulers, never for tensors: torch swaps no tensor that has a weak reference
    (``Module.to`` of FSDP2, of wrapper subclasses and with ``set_swap_module_params_on_conversion``).
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, key: Key) -> Value | None:
        """The value of ``key``, None without one."""
        held = self._held.get(id(key))
        return None if held is None else held[1]

    def put(self, key: Key, value: Value) -> None:
        """Set the value of ``key``; it must not refer to that."""
        held, at = self._held, id(key)
        held[at] = weakref.ref(key, lambda _: held.pop(at, None)), value

    def __contains__(self, key: Key) -> bool:
        return id(key) in self._held

    def __bool__(self) -> bool:
        """Whether it has an object that is alive."""
        return any(ref() is not None for ref, _ in tuple(self._held.values()))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Objects that are alive with their values, in the order in which they came."""
        alive = [(ref(), value) for ref, value in tuple(self._held.values())]
        return ((key, value) for key, value in alive if key is not None)

    def values(self) -> list[Value]:
        """Those of all objects, in the order in which they came."""
        return [value for _, value in tuple(self._held.values())]

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self.items())

    def drop(self, key: Key) -> None:
        """Forget ``key``."""
        self._held.pop(id(key), None)

    def clear(self) -> None:
        """Forget all of them."""
        self._held.clear()
