"""Read what running statistics of the inputs, which the script keeps beside the model, have counted.

Nothing announces them: a normaliser of observations is an object of the script's or of a library's with a mean and a
variance of the shape of a sample, and a count. It is sought once, and its count is read at each sampled step.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trueline.capture.model.contents import is_tensor
from trueline.capture.model.layout import unwrap
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import tensors_inside
from trueline.capture.probes.parts import ProbeParts

SEARCH_AGE = 2
"""Watched steps after which statistics are sought, once: what normalises inputs was made before the loop."""
MAX_FOUND, MAX_OBJECTS, MAX_ENTRIES = 8, 50_000, 16
"""Statistics that are followed, objects that are looked at, and entries of a dict that is an attribute of one."""
_SPREADS = ("var", "std", "m2", "square")
_COUNTS = ("count", "num", "seen", "total")
_SHORT_COUNTS = ("n", "_n", "n_")
_PACKAGES = frozenset({"torch", "numpy", "trueline", *sys.stdlib_module_names, *sys.builtin_module_names})
"""Packages whose objects are no statistics of inputs, but for modules of torch."""


@dataclass(frozen=True)
class _Statistics:
    """Entries of what ``holder`` returns, None once that is gone; ``count`` is the name of their count."""

    holder: Callable[[], Any]
    kind: str
    mean: str
    spread: str
    count: str


class RunningProbe:
    """The columns ``running_facts``, where statistics were found, and ``running_counts`` from there on."""

    name = "running statistics of inputs"
    moments = ("batch", "update")
    between = None

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._shapes: set[tuple[int, ...]] = set()
        self._followed: list[_Statistics] | None = None

    def begin(self, step: Step) -> bool:
        return step.watched and step.sampled and step.age >= SEARCH_AGE and self._followed != []

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        if moment == "batch":
            if self._followed is None:
                tensors = itertools.chain(tensors_inside("", step.args), tensors_inside("", step.kwargs))
                self._shapes |= {tuple(x.shape[1:]) for _, x in tensors if x.is_floating_point()}
            return {}
        columns: dict[str, Any] = {}
        if self._followed is None and self._shapes:
            inside = {id(module) for module in unwrap(self._model).modules()}
            by_identity = dict(_running_statistics(self._shapes, inside))
            self._followed = list(by_identity.values())[:MAX_FOUND]
            if self._followed:
                facts = [[part.kind, part.mean, part.spread, part.count] for part in self._followed]
                columns["running_facts"] = json.dumps(facts)
        counts = [_count(statistics) for statistics in self._followed or ()]
        if any(isinstance(count, Tensor) and count.device.type != "cpu" for count in counts):
            device = step.layout.device
            rows = [_on(device, count) for count in counts]
            return columns | {"running_counts": torch.stack(rows)}
        return columns | ({"running_counts": [float(count) for count in counts]} if counts else {})

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"running_counts": host["running_counts"].tolist()} if "running_counts" in host else {}


def _running_statistics(shapes: set[tuple[int, ...]], inside: set[int]) -> Iterator[tuple[int, _Statistics]]:
    """Statistics of tensors of ``shapes`` that no module ``inside`` the model has, with their identity."""
    objects = gc.get_objects()
    kinds = list(map(type, objects))
    wanted = {kind for kind in set(kinds) if _may_hold(kind)}
    holders = itertools.islice(itertools.compress(objects, map(wanted.__contains__, kinds)), MAX_OBJECTS)
    for holder in itertools.chain(holders, [sys.modules["__main__"]]):
        attributes = {} if id(holder) in inside else _attributes(holder)
        if names := _names(attributes, shapes):
            yield id(holder), _Statistics(weakref.ref(holder), type(holder).__qualname__, *names)
        for name, value in tuple(attributes.items()):
            is_small = type(value) is dict and len(value) <= MAX_ENTRIES and name != "_buffers"
            if is_small and (names := _names(_attributes(value), shapes)):
                entry = functools.partial(_entry, weakref.ref(holder), name)
                yield id(value), _Statistics(entry, name, *names)


def _entry(holder: weakref.ref[Any], name: str) -> Any:
    """The dict that is an attribute of ``holder``, which alone keeps it alive."""
    value = _attributes(holder()).get(name)
    return value if type(value) is dict else None


def _names(attributes: Mapping[str, Any], shapes: set[tuple[int, ...]]) -> tuple[str, str, str] | None:
    """Names of a mean, a spread of its shape and a count; None where one of them is missing."""
    means = [name for name, value in attributes.items() if "mean" in name.lower() and _fits(value, shapes)]
    counts = [name for name, value in attributes.items() if _is_count(name, value)] if means else []
    for mean in means if counts else ():
        shape = tuple(attributes[mean].shape)
        for name, value in attributes.items():
            if name != mean and any(word in name.lower() for word in _SPREADS) and _fits(value, {shape}):
                return mean, name, counts[0]
    return None


def _may_hold(kind: type[Any]) -> bool:
    """True if objects of the class have attributes and are no part of Python, numpy or torch."""
    package = str(type.__getattribute__(kind, "__module__")).partition(".")[0]
    is_module = nn.Module in kind.__mro__
    return (package not in _PACKAGES or is_module) and kind.__dictoffset__ != 0 and kind.__weakrefoffset__ != 0


def _attributes(holder: Any) -> Mapping[str, Any]:
    """What a dict or the object itself has by name, of a module its buffers; without running code of its class."""
    if type(holder) is dict:
        return {name: value for name, value in tuple(holder.items()) if isinstance(name, str)}
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    if isinstance(attributes.get("_buffers"), dict) and isinstance(holder, nn.Module):
        attributes = {**attributes, **attributes["_buffers"]}
    return {name: value for name, value in tuple(attributes.items()) if isinstance(name, str)}


def _fits(value: Any, shapes: set[tuple[int, ...]]) -> bool:
    """True for an array of more than one float that has one of ``shapes``, or stands for its last dimensions."""
    if type(value) is np.ndarray:
        is_float = value.dtype.kind == "f"
    elif is_tensor(value):
        is_float = value.is_floating_point()
    else:
        return False
    shape = tuple(value.shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return is_float and bool(shape) and any(shape == sample[len(sample) - len(shape) :] for sample in shapes)


def _is_count(name: str, value: Any) -> bool:
    lowered = name.lower()
    is_named = lowered in _SHORT_COUNTS or any(word in lowered for word in _COUNTS)
    # by the class itself: a proxy answers isinstance by code of its own
    kind = type(value)
    if not is_named or kind is bool:
        return False
    if issubclass(kind, (int, float, np.integer, np.floating)):
        return True
    return issubclass(kind, (np.ndarray, Tensor)) and len(value.shape) <= 1 and _size(value) == 1


def _size(value: Any) -> int:
    return value.numel() if is_tensor(value) else int(value.size)


def _on(device: torch.device, count: Any) -> Tensor:
    """Float64 [] of a count on ``device``. One in host memory is filled in: to copy it there would wait."""
    if is_tensor(count) and count.device.type != "cpu":
        return count.to(device, torch.float64)
    return torch.full((), float(count), dtype=torch.float64, device=device)


def _count(statistics: _Statistics) -> Any:
    """The count as it is now, NaN where the object or the count is gone."""
    holder = statistics.holder()
    count = None if holder is None else _attributes(holder).get(statistics.count)
    if count is None or not _is_count(statistics.count, count):
        return float("nan")
    if is_tensor(count):
        return count.detach().reshape(())
    return float(np.asarray(count).reshape(()))


def make_probe(parts: ProbeParts) -> RunningProbe:
    """The probe of running statistics for one watched model."""
    return RunningProbe(parts.model)
