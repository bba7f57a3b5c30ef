"""What a forward pass may change beside parameters: buffers, attributes of modules and what these hold. It is kept, and
put back, so that another forward pass leaves no trace.

Objects are looked into as they are stored: no property and no method of a class of the user's is called.
"""

from __future__ import annotations

import collections
import enum
import functools
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.contents import PLAIN, attributes, is_tensor
from trueline.capture.model.untraced import is_ours

MAX_OBJECTS = 50_000
"""Containers and objects that are looked into; a model of a thousand layers has some ten thousand."""
MAX_BYTES = 2**28
"""Bytes of buffers and of tensors in attributes that are copied."""

_TABLES = ("_modules", "_buffers")
"""Dicts of a module that hold what it registers. Parameters stay: libraries that shard put others in their place."""

_UNCHANGING = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.MappingProxyType),
    *(enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, property),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.GenericAlias, frozenset),
)
"""Types whose objects hold nothing that a call changes."""


class NotStorable(Exception):
    """Says in words of the user's what a second forward pass could change and nobody could put back."""


class StoredState:
    """The state of what ``roots`` (modules and further objects, by name) hold. ``functions`` and ``objects`` (of
    classes with an ``__dict__`` or slots) are those that were met, by name. Raises ``NotStorable``.
    """

    def __init__(self, roots: Iterable[tuple[str, object]]) -> None:
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._slots: list[tuple[object, str, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._generators: list[tuple[Any, Any]] = []
        self.functions: list[tuple[str, Any]] = []
        self.objects: list[tuple[str, object]] = []
        self._bytes_left, self._objects_left = MAX_BYTES, MAX_OBJECTS
        self._seen = set[int]()
        ahead = list(roots)
        while ahead:
            name, value = ahead.pop()
            ahead += self._take(name, value)

    def put_back(self) -> None:
        """Make everything as it was."""
        for table, entries in self._dicts:
            _put_back_dict(table, entries)
        for sequence, entries in self._lists:
            _put_back_sequence(sequence, entries)
        for group, entries in self._sets:
            if set.__ne__(group, entries):
                set.update(group, entries)
                set.intersection_update(group, entries)
        for owner, slot, value in self._slots:
            object.__setattr__(owner, slot, value)
        for tensor, values in self._tensors:
            # .data shares memory and not the count of changes, which would spoil a graph that is still to be used
            tensor.data.copy_(values)
        for generator, state in self._generators:
            _set_state(generator, state)

    def _take(self, name: str, value: object) -> Iterator[tuple[str, object]]:
        kind = type(value)
        if kind in (types.FunctionType, types.MethodType, functools.partial):
            self.functions.append((name, value))
        if kind in PLAIN or id(value) in self._seen or is_ours(value):
            return
        if isinstance(value, _UNCHANGING):
            return
        # states of what shards and reduces, which keeps them for itself
        if kind.__module__.startswith("torch.distributed") and not isinstance(value, nn.Module):
            return
        self._seen.add(id(value))
        self._objects_left -= 1
        if self._objects_left < 0:
            raise NotStorable("it holds more objects than are looked at")
        yield from self._take_kind(name, value, kind)

    def _take_kind(self, name: str, value: Any, kind: type) -> Iterator[tuple[str, object]]:
        if is_tensor(value):
            self._take_tensor(name, value)
        elif isinstance(value, nn.Module):
            yield from self._take_module(name, value)
        elif issubclass(kind, dict):
            yield from self._take_dict(name, value)
        elif issubclass(kind, (list, collections.deque)):
            self._lists.append((value, list(_kind_of_sequence(value).__iter__(value))))
            yield from ((f"{name}[{place}]", entry) for place, entry in enumerate(self._lists[-1][1]))
        elif issubclass(kind, tuple):
            yield from ((f"{name}[{place}]", entry) for place, entry in enumerate(tuple.__iter__(value)))
        elif issubclass(kind, set):
            self._sets.append((value, set[Any]().union(value)))
        elif (state := _state_of(value)) is not None:
            self._generators.append((value, state))
        elif isinstance(value, types.MethodType):
            yield name, value.__self__
        else:
            yield from self._take_object(name, value)

    def _take_tensor(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Parameter):
            return
        if type(value) is not Tensor or value.layout != torch.strided:
            kind = type(value).__name__ if type(value) is not Tensor else f"tensor of layout {value.layout}"
            raise NotStorable(f"{name} is a {kind}")
        if value.grad_fn is not None:
            return  # made of another pass: who changes it would break its own backward pass
        self._bytes_left -= value.numel() * value.element_size()
        if self._bytes_left < 0:
            raise NotStorable(f"buffers and attributes take more than {MAX_BYTES // 2**20} MiB")
        self._tensors.append((value, value.detach().clone()))

    def _take_module(self, name: str, module: nn.Module) -> Iterator[tuple[str, object]]:
        own = module.__dict__
        self._dicts.append((own, dict(own)))
        for key, value in list(own.items()):
            if key in _TABLES:
                self._dicts.append((value, dict(value)))
                yield from ((f"{name}.{inner}".lstrip("."), entry) for inner, entry in value.items())
            elif key != "_parameters":
                yield f"{name}.{key}".lstrip("."), value

    def _take_dict(self, name: str, value: Any) -> Iterator[tuple[str, object]]:
        self._dicts.append((value, dict(_kind_of_dict(value).items(value))))
        for key, entry in self._dicts[-1][1].items():
            yield f"{name}[{key!r}]" if type(key) in (str, int) else name, entry
        if attributes(value):
            yield from self._take_object(name, value)

    def _take_object(self, name: str, value: object) -> Iterator[tuple[str, object]]:
        self.objects.append((name, value))
        own = attributes(value)
        slots = [
            (key, value)
            for base in type(value).__mro__
            for key in _slots_of(base)
            if isinstance(vars(base).get(key), types.MemberDescriptorType)
        ]
        if own:
            self._dicts.append((own, dict(own)))
            yield from ((f"{name}.{key}", entry) for key, entry in self._dicts[-1][1].items())
        for key, owner in slots:
            try:
                entry = object.__getattribute__(owner, key)
            except AttributeError:  # nothing was put into it
                continue
            self._slots.append((owner, key, entry))
            yield f"{name}.{key}", entry
        if not own and not slots and not _is_harmless(value):
            raise NotStorable(f"{name} is a {type(value).__module__}.{type(value).__qualname__}")


def _kind_of_dict(table: dict[Any, Any]) -> Any:
    """Whose methods to call: a class of the user's may do more in its own, and those of dict spoil an OrderedDict."""
    return collections.OrderedDict if isinstance(table, collections.OrderedDict) else dict


def _kind_of_sequence(sequence: Any) -> Any:
    return list if isinstance(sequence, list) else collections.deque


def _put_back_dict(table: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Give ``table`` these entries in this order. It is never empty in between, where a handler of a signal may read
    it.
    """
    kind = _kind_of_dict(table)
    items = list(kind.items(table))
    if len(items) == len(entries) and all(
        a is c and b is d for (a, b), (c, d) in zip(items, entries.items(), strict=True)
    ):
        return
    for key in [key for key, _ in items if key not in entries]:
        kind.__delitem__(table, key)
    for key, value in entries.items():
        kind.__setitem__(table, key, value)
    if [*kind.keys(table)] != [*entries]:
        for key, value in entries.items():  # behind all that are there
            kind.__delitem__(table, key)
            kind.__setitem__(table, key, value)


def _put_back_sequence(sequence: Any, entries: list[Any]) -> None:
    kind = _kind_of_sequence(sequence)
    now = list(kind.__iter__(sequence))
    if len(now) == len(entries) and all(a is b for a, b in zip(now, entries, strict=True)):
        return
    if kind is list:
        list.__setitem__(sequence, slice(None), entries)
    else:
        kind.clear(sequence)
        kind.extend(sequence, entries)


def _slots_of(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _state_of(value: Any) -> Any:
    """The state of a generator of random numbers; None of anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if type(value) is random.Random:
        return value.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.random.Generator:
        return value.bit_generator.state
    if numpy is not None and type(value) is numpy.random.RandomState:
        return value.get_state()
    if numpy is not None and type(value) is numpy.ndarray:
        return value.copy()
    return None


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif isinstance(generator, torch.Generator) or hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator[...] = state


def _is_harmless(value: object) -> bool:
    """True of objects of Python's own and of torch that hold nothing: patterns, ranges, groups of processes."""
    kind = type(value)
    return (
        kind.__module__ in ("builtins", "re", "functools", "typing", "weakref", "decimal", "fractions", "datetime")
        and not hasattr(kind, "__next__")
    ) or kind.__module__.startswith("torch._C")
