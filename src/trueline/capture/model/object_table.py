"""Facts about objects of the user's, for as long as these live."""

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
        self._entries: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, key: Key) -> Value | None:
        """The value of ``key``, None without one."""
        entry = self._entries.get(id(key))
        return None if entry is None else entry[1]

    def set(self, key: Key, value: Value) -> None:
        """Set the value of ``key``, to which it must not refer: the key would live for ever."""
        entries, identity = self._entries, id(key)
        entries[identity] = weakref.ref(key, lambda _: entries.pop(identity, None)), value

    def __contains__(self, key: Key) -> bool:
        return id(key) in self._entries

    def __bool__(self) -> bool:
        """True if it has an object that is alive."""
        return any(ref() is not None for ref, _ in tuple(self._entries.values()))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Objects that are alive with their values, in the order in which they came."""
        alive = [(ref(), value) for ref, value in tuple(self._entries.values())]
        return ((key, value) for key, value in alive if key is not None)

    def values(self) -> list[Value]:
        """Values of all objects, in the order in which they came."""
        return [value for _, value in tuple(self._entries.values())]

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self.items())

    def drop(self, key: Key) -> None:
        """Forget ``key``."""
        self._entries.pop(id(key), None)

    def clear(self) -> None:
        """Forget all objects."""
        self._entries.clear()
