"""Contents of what a model reads or returns, found without running any code of it.

Only what a container or an object holds itself is looked at: no property, no ``__iter__``, ``items`` or
``__getattr__`` of a class of the user's is called, which may count, print, load or never end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MemberDescriptorType
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 4
"""Containers inside each other that are opened: those that refer to themselves would never end."""
MAX_LENGTH, MAX_VALUES = 1_000, 10_000
"""Values that are looked at of one container, and of all that are inside of one value."""

PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size}
)
"""Types of what holds no tensor."""

_ABSENT = object()


def stored(value: Any, name: str) -> Any:
    """The entry, or else the attribute, of this name that ``value`` itself holds; None without."""
    kind = type(value)
    if issubclass(kind, dict) and (entry := dict.get(value, name, _ABSENT)) is not _ABSENT:
        return entry
    fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
    if isinstance(fields, tuple) and name in fields:
        return tuple.__getitem__(value, fields.index(name))
    if (entry := attributes(value).get(name, _ABSENT)) is not _ABSENT:
        return entry
    # Through __mro__ and not getattr, which would call a property of the user's.
    slot = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    if isinstance(slot, MemberDescriptorType):
        return _in_slot(slot, value)
    entries = None if issubclass(kind, dict) else _entries(value)
    return None if entries is None else dict.get(entries, name)


def is_tensor(value: Any) -> bool:
    """True if it is one, and no object that passes itself off as one: to ask it would run code of its class."""
    return issubclass(type(value), Tensor)


def elements(value: Any) -> Iterator[Any]:
    """Elements of a list or tuple; none of anything else."""
    kind = type(value)
    return list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value if issubclass(kind, tuple) else ())


def attributes(value: Any) -> dict[str, Any]:
    """The attributes that an object itself holds, but for those in slots."""
    try:
        own_dict = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own_dict if type(own_dict) is dict else {}


class Walk:
    """Finds the tensors in values. ``is_complete`` is False once something was met that may hold more: an object of
    another kind, or what is beyond the bounds.

    A tensor has the name that the innermost mapping or object gives it, else that of the value; with ``paths`` the
    names and places of all containers, joined by dots. With ``objects`` the attributes of any object are looked at.
    """

    def __init__(self, *, paths: bool = False, objects: bool = False) -> None:
        self._paths, self._objects = paths, objects
        self.is_complete = True

    def tensors(self, name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
        """The tensors in ``value``, which is called ``name``."""
        self._num_left = MAX_VALUES
        return self._inside(name, value, 0)

    def _inside(self, name: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
        if is_tensor(value):
            yield name, value
            return
        if type(value) in PLAIN:
            return
        parts = None if depth == MAX_DEPTH else self._parts(value)
        if parts is None:
            self.is_complete = False
            return
        for number, (key, inner) in enumerate(parts):
            self._num_left -= 1
            if number == MAX_LENGTH or self._num_left < 0:
                self.is_complete = False
                return
            if type(inner) not in PLAIN:
                yield from self._inside(self._name_inside(name, key, number), inner, depth + 1)

    def _name_inside(self, name: str, key: Any, number: int) -> str:
        if not self._paths:
            return key if type(key) is str else str(key) if type(key) is int else name
        return f"{name}.{number if key is None or type(key) not in PLAIN else slot_of(key)}"

    def _parts(self, value: Any) -> Iterable[tuple[Any, Any]] | None:
        """(name or None, value) of what is directly inside of ``value``; None where it is no container."""
        kind = type(value)
        if issubclass(kind, dict):
            return dict.items(value)
        if issubclass(kind, (list, tuple)):
            fields = None if self._paths else getattr(kind, "_fields", None)
            return zip(fields if type(fields) is tuple else itertools.repeat(None), elements(value), strict=False)
        fields = getattr(kind, "__dataclass_fields__", None)
        if type(fields) is dict:
            return ((name, stored(value, name)) for name in fields)
        if (entries := _entries(value)) is not None:
            return dict.items(entries)
        return dict.items(attributes(value)) if self._objects else None


def _entries(value: Any) -> dict[Any, Any] | None:
    """The dict in which a mapping of another class keeps its entries (``UserDict``, a tokenizer's or processor's batch,
    a tensor dict); None where that is not clear.
    """
    if not issubclass(type(value), Mapping):
        return None
    dicts = [attribute for attribute in attributes(value).values() if issubclass(type(attribute), dict)]
    return dicts[0] if len(dicts) == 1 else None


def _in_slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # nothing was put into it
        return None


def slot_of(key: Any) -> str:
    """A mapping's key as part of a path, which has letters, digits, ``_`` and ``.`` only."""
    return "".join(letter if letter.isalnum() else "_" for letter in str(key))
