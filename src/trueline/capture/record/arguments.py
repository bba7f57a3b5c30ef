"""Which tensors a call was given and returned, under which slot, and its other arguments as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Slots = Sequence[tuple[str, Tensor]]

MAX_DEPTH = 4
"""Levels of nested containers that are searched for tensors; deeper ones are described by their type."""

MAX_KNOWN = 4096
"""Descriptions in the cache; it is cleared when it holds more."""

MAX_TEXT = 200
"""Characters of a text, and elements of a list, that are recorded."""

_json = json.JSONEncoder(separators=(",", ":")).encode
_IN = tuple(f"in{index}" for index in range(64))
_OUT = tuple(f"out{index}" for index in range(64))


def inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Slots:
    """(slot, tensor) of everything a call was given: ``in0``, ``in1.2`` in a list, the name of a kwarg."""
    found: Slots = []
    for index, value in enumerate(args):
        _open(f"in{index}", value, found, 1)
    for name, value in kwargs.items():
        _open(name, value, found, 1)
    return found


def written(slots: Slots, *, in_place: bool) -> Slots:
    """Those of a call's inputs that it writes to: ``out``, and the first one of a call ``in_place``."""
    if not in_place and not (slots and slots[-1][0].startswith("out")):
        return ()
    names = ("out", "in0") if in_place else ("out",)
    return [(slot, x) for slot, x in slots if slot.partition(".")[0] in names]


def outputs(result: Any) -> Slots:
    """(slot, tensor) of everything a call returned: ``out0``, ``out1``, ``out.logits``, ``out0.2``."""
    if isinstance(result, Tensor):
        return [(_OUT[0], result)]
    found: Slots = []
    if isinstance(result, (tuple, list)):
        for index, value in enumerate(result):
            if isinstance(value, Tensor):
                found.append((_OUT[index] if index < 64 else f"out{index}", value))
            elif value is not None:
                _open(f"out{index}", value, found, 1)
    elif type(result) not in _SCALARS:
        _open("out", result, found, 0)
    return found


class Described:
    """``inputs`` and ``described`` of calls. Descriptions are cached: the same call has the same arguments at every
    step.
    """

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Slots, str]:
        """What a call was given, as ``inputs`` and as ``described``."""
        found: Slots = []
        key: list[Any] = []
        try:
            for index, value in enumerate(args):
                _take(value, _IN[index] if index < 64 else f"in{index}", found, key)
            for name, value in kwargs.items():
                key.append(name)
                _take(value, name, found, key)
            known = tuple(key)
            text = self._known.get(known)
        except TypeError:  # something that cannot be hashed
            return inputs(args, kwargs), described(args, kwargs)
        if text is None:
            if len(self._known) >= MAX_KNOWN:  # a number that is another one at every step
                self._known.clear()
            text = self._known[known] = described(args, kwargs)
        return found, text


def _take(value: Any, slot: str, found: Slots, key: list[Any]) -> None:
    """Add the tensors in one argument, and what its description depends on: 1, 1.0 and True are different."""
    if isinstance(value, Tensor):
        found.append((slot, value))
        key.append(Tensor)
    elif (kind := type(value)) in _SCALARS:
        key += (kind, value)
    else:
        key.append(_key(value))
        _open(slot, value, found, 1)


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """JSON of a call's arguments, ``{"args": [...], "kwargs": {...}}``; a tensor stands as ``{"in": slot}``, an object
    without a JSON form as ``{"type": ...}``.
    """
    plain = {
        "args": [_plain(value, f"in{index}", 0) for index, value in enumerate(args)],
        "kwargs": {name: _plain(value, name, 0) for name, value in kwargs.items()},
    }
    return _json(plain)


def _key(value: Any) -> Any:
    """The part of an argument that its description depends on; 1, 1.0 and True are different."""
    if isinstance(value, Tensor):
        return Tensor
    kind = type(value)
    if kind in _SCALARS:
        return (kind, value)
    if kind in (tuple, list):
        return (kind, tuple(map(_key, value)))
    if kind is slice:
        return (kind, _key(value.start), _key(value.stop), _key(value.step))
    if value is Ellipsis:
        return kind
    raise TypeError(kind)


_SCALARS = frozenset({int, float, bool, str, type(None), complex, torch.dtype, torch.device, torch.Size})


def _open(slot: str, value: Any, found: Slots, depth: int) -> None:
    if isinstance(value, Tensor):
        found.append((slot, value))
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _open(f"{slot}.{_part(key)}", inner, found, depth + 1)
    elif isinstance(value, (tuple, list)):
        for index, inner in enumerate(value):
            if type(inner) not in _SCALARS:
                _open(f"{slot}.{index}", inner, found, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _open(f"{slot}.{field.name}", getattr(value, field.name, None), found, depth + 1)


def _part(key: Any) -> str:
    """A mapping's key as part of a slot, which has letters, digits, ``_`` and ``.`` only."""
    return "".join(letter if letter.isalnum() else "_" for letter in str(key))


def _plain(value: Any, slot: str, depth: int) -> Any:
    if isinstance(value, Tensor):
        return {"in": slot}
    if value is None or isinstance(value, (bool, int, float)):
        return value if value == value and value not in (float("inf"), float("-inf")) else str(value)
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return str(value)
    if depth < MAX_DEPTH and isinstance(value, slice):
        return {"slice": [_plain(part, slot, depth + 1) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"type": "Ellipsis"}
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{slot}.{_part(key)}", depth + 1) for key, inner in value.items()}
    if depth < MAX_DEPTH and isinstance(value, (tuple, list)):
        return [_plain(inner, f"{slot}.{index}", depth + 1) for index, inner in enumerate(value[:MAX_TEXT])]
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}
