"""Tensors that a call was given and returned, by slot, and its other arguments as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.contents import MAX_DEPTH, MAX_LENGTH, MAX_VALUES, PLAIN, Walk, elements, is_tensor, slot_of

Slots = Sequence[tuple[str, Tensor]]

MAX_KEY = 64
"""Elements of a list in a call whose description is kept."""

MAX_KNOWN = 4096
"""Descriptions in the cache; it is cleared when it holds more."""

MAX_TEXT = 200
"""Characters of a text, and elements of a list, that are recorded."""

_json = json.JSONEncoder(separators=(",", ":")).encode
# Formatted once: nearly every call of a step has a few arguments in order.
_IN_SLOTS = tuple(f"in{index}" for index in range(64))
_OUT_SLOTS = tuple(f"out{index}" for index in range(64))


def inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Slots:
    """(slot, tensor) of everything a call was given: ``in0``, ``in1.2`` in a list, the name of a kwarg."""
    slots: Slots = []
    for index, value in enumerate(args):
        _open(f"in{index}", value, slots)
    for name, value in kwargs.items():
        _open(name, value, slots)
    return slots


def written(slots: Slots, *, in_place: bool) -> Slots:
    """The inputs that a call writes to: ``out``, and the first one of a call ``in_place``, also where it is given by
    name, as ``torch.nn.init`` does.
    """
    if not slots or not (in_place or slots[-1][0].startswith("out")):
        return ()
    names = ("out", slots[0][0].partition(".")[0]) if in_place else ("out",)
    return [(slot, x) for slot, x in slots if slot.partition(".")[0] in names]


def outputs(result: Any) -> Slots:
    """(slot, tensor) of everything a call returned: ``out0``, ``out1``, ``out.logits``, ``out0.2``."""
    if is_tensor(result):
        return [(_OUT_SLOTS[0], result)]
    slots: Slots = []
    if issubclass(type(result), (tuple, list)):
        for index, value in enumerate(itertools.islice(elements(result), MAX_LENGTH)):
            if is_tensor(value):
                slots.append((_OUT_SLOTS[index] if index < 64 else f"out{index}", value))
            elif type(value) not in PLAIN:
                _open(f"out{index}", value, slots)
    elif type(result) not in _SCALARS:
        _open("out", result, slots)
    return slots


class Described:
    """``inputs`` and ``described`` of calls. Descriptions are cached: the same call has the same arguments at every
    step.
    """

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Slots, str]:
        """``inputs`` and ``described`` of a call."""
        slots: Slots = []
        key: list[Any] = []
        try:
            for index, value in enumerate(args):
                _take(value, _IN_SLOTS[index] if index < 64 else f"in{index}", slots, key)
            for name, value in kwargs.items():
                key.append(name)
                _take(value, name, slots, key)
            cache_key = tuple(key)
            text = self._texts.get(cache_key)
        except TypeError:  # something that cannot be hashed
            return inputs(args, kwargs), described(args, kwargs)
        if text is None:
            if len(self._texts) >= MAX_KNOWN:  # a number that is another one at every step
                self._texts.clear()
            text = self._texts[cache_key] = described(args, kwargs)
        return slots, text


def _take(value: Any, slot: str, slots: Slots, key: list[Any]) -> None:
    """Add the tensors in one argument, and what its description depends on: 1, 1.0 and True are different."""
    if is_tensor(value):
        slots.append((slot, value))
        key.append(Tensor)
    elif (kind := type(value)) in _SCALARS:
        key += (kind, value)
    else:
        key.append(_key(value))
        _open(slot, value, slots)


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """JSON of a call's arguments, ``{"args": [...], "kwargs": {...}}``; a tensor stands as ``{"in": slot}``, an object
    without a JSON form as ``{"type": ...}``.
    """
    form = _Plain().form_of
    plain = {
        "args": [form(value, f"in{index}") for index, value in enumerate(args)],
        "kwargs": {name: form(value, name) for name, value in kwargs.items()},
    }
    return _json(plain)


def _key(value: Any) -> Any:
    """The part of an argument that its description depends on; 1, 1.0 and True are different."""
    if is_tensor(value):
        return Tensor
    kind = type(value)
    if kind in _SCALARS:
        return (kind, value)
    if kind in (tuple, list) and len(value) <= MAX_KEY:
        return (kind, tuple(map(_key, value)))
    if kind is slice:
        return (kind, _key(value.start), _key(value.stop), _key(value.step))
    if value is Ellipsis:
        return kind
    raise TypeError(kind)


_SCALARS = frozenset({int, float, bool, str, type(None), complex, torch.dtype, torch.device, torch.Size})


def _open(slot: str, value: Any, slots: list[tuple[str, Tensor]]) -> None:
    slots += Walk(paths=True).tensors(slot, value)


class _Plain:
    """JSON forms of values, of which ``MAX_VALUES`` are looked at together."""

    def __init__(self) -> None:
        self._num_left = MAX_VALUES

    def form_of(self, value: Any, slot: str, depth: int = 0) -> Any:
        """The JSON form of ``value``."""
        kind = type(value)
        self._num_left -= 1
        if is_tensor(value):
            return {"in": slot}
        if value is None or issubclass(kind, (bool, int, float)):
            return _number(value)
        if issubclass(kind, str):
            return str.__getitem__(value, slice(MAX_TEXT))
        if kind in (torch.dtype, torch.device, torch.memory_format, torch.layout):
            return str(value)
        if value is Ellipsis:
            return {"type": "Ellipsis"}
        if depth < MAX_DEPTH and self._num_left > 0:
            if kind is slice:
                return {
                    "slice": [self.form_of(part, slot, depth + 1) for part in (value.start, value.stop, value.step)]
                }
            if issubclass(kind, dict):
                pairs = [(_text(key), inner) for key, inner in itertools.islice(dict.items(value), MAX_TEXT)]
                return {name: self.form_of(inner, f"{slot}.{slot_of(name)}", depth + 1) for name, inner in pairs}
            if issubclass(kind, (tuple, list)):
                numbered = enumerate(itertools.islice(elements(value), MAX_TEXT))
                return [self.form_of(inner, f"{slot}.{index}", depth + 1) for index, inner in numbered]
        return {"type": f"{kind.__module__}.{kind.__qualname__}"}


def _text(key: Any) -> str:
    return str(key) if type(key) in PLAIN else type(key).__name__


def _number(value: bool | int | float | None) -> bool | int | float | str | None:
    return value if value == value and value not in (float("inf"), float("-inf")) else str(value)
