"""Some elements of each parameter that a load filled, and what became of them until training begins."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import clean_name, local
from trueline.tensor.memory import is_readable

MOST_PARAMS, MOST_ELEMENTS = 4_096, 64
"""Parameters whose elements are kept, and how many of each: two draws of as many have a correlation of 0.125 in
standard deviation."""

Place = tuple[int, str]
"""The identity of a module, and the name of a parameter in it."""


@dataclass(frozen=True, eq=False)
class Call:
    """A ``call`` at a ``line`` of the script that filled parameters of ``module``, of the class ``kind``."""

    module: weakref.ref[nn.Module]
    kind: type[nn.Module]
    call: str
    line: str


@dataclass(frozen=True, eq=False)
class _Loaded:
    """``elements`` of a parameter of ``shape`` on this rank that ``load`` filled: ``path`` leads to it from the module
    of the load, and ``part`` held it.
    """

    load: Call
    part: weakref.ref[nn.Module]
    path: str
    shape: tuple[int, ...]
    elements: Tensor


@dataclass(frozen=True, eq=False)
class Compared:
    """A parameter of the model by its ``name``, what was loaded of it and what it has now: float32 [n] each. ``way`` is
    ``same`` where the module that was loaded still holds it, ``other`` where another one stands in its place, ``gone``
    where another model of that class does.
    """

    name: str
    way: str
    call: Call
    shape: tuple[int, ...]
    rows_added: int
    loaded: Tensor
    now: Tensor


class LoadedValues:
    """What loads have put into parameters, as the last of them left it. A load of what is no longer trained is kept
    until the process makes its first update, and is not looked at after that.
    """

    def __init__(self) -> None:
        self._by_place: dict[Place, _Loaded] = {}

    def note(self, module: nn.Module, call: str, line: str, filled: Mapping[str, tuple[Place, Tensor]]) -> None:
        """Keep some elements of the parameters of ``module`` that are ``filled``, by their names in it."""
        parts = {id(part): part for part in module.modules()}
        load = Call(weakref.ref(module), type(module), call, line)
        for path, (place, tensor) in filled.items():
            part = parts.get(place[0])
            if part is None or not isinstance(tensor, nn.Parameter):
                continue
            self._by_place.pop(place, None)
            elements = _elements(tensor, tuple(local(tensor).shape))
            if elements is not None and len(self._by_place) < MOST_PARAMS:
                shape = tuple(local(tensor).shape)
                self._by_place[place] = _Loaded(load, weakref.ref(part), path, shape, elements)

    def forget(self, filled: Sequence[Place]) -> None:
        """Know no more of what is ``filled`` anew while training goes on."""
        for place in filled if self._by_place else ():
            self._by_place.pop(place, None)

    def compared(self, model: nn.Module) -> Iterator[Compared]:
        """Parameters of ``model`` that were loaded, in its order, with what they have now; none of those that are kept
        in another form.
        """
        names = {id(module): name for name, module in model.named_modules()}
        paths: dict[str, tuple[str, _Loaded]] = {}
        gone: dict[int, list[_Loaded]] = {}
        for (_, name), value in self._by_place.items():
            part, module = value.part(), value.load.module()
            if part is not None and id(part) in names:
                paths[_joined(names[id(part)], name)] = "same", value
            elif module is not None and id(module) in names:
                paths.setdefault(_joined(names[id(module)], value.path), ("other", value))
            elif module is None and part is None:
                gone.setdefault(id(value.load), []).append(value)
        for values in gone.values():
            prefix = _place_of(model, values, taken=paths)
            if prefix is not None:
                paths |= {_joined(prefix, value.path): ("gone", value) for value in values}
        embeddings = {_joined(name, "weight") for name, part in model.named_modules() if isinstance(part, nn.Embedding)}
        for path, param in model.named_parameters() if paths else ():
            if path in paths:
                way, value = paths[path]
                added = _rows_added(param, value.shape) if path in embeddings else 0
                elements = _elements(param, value.shape, rows_added=added)
                if elements is not None and len(elements) == len(value.elements):
                    yield Compared(clean_name(path), way, value.load, value.shape, added, value.elements, elements)


def comparison(compared: Sequence[Compared], device: torch.device) -> Tensor:
    """Float64 [P, 5] of what was loaded and what is there now: elements that were looked at, those that are the same
    but for rounding to bfloat16, their correlation (NaN where one is constant), and 1 where what was loaded, and what
    is there now, has one value only.
    """
    loaded, now = (
        nn.utils.rnn.pad_sequence([x.to(device) for x in side], batch_first=True).double()
        for side in ([pair.loaded for pair in compared], [pair.now for pair in compared])
    )
    lengths = torch.tensor([len(pair.loaded) for pair in compared], device=device)
    is_there = torch.arange(loaded.shape[1], device=device) < lengths[:, None]
    # bfloat16 has 8 bits, of which half a unit is lost at each of two roundings
    close = ((loaded - now).abs() <= 2.0**-8 * torch.maximum(loaded.abs(), now.abs())) & is_there
    centred = [
        torch.where(is_there, side - side.sum(1, keepdim=True) / lengths[:, None], 0.0) for side in (loaded, now)
    ]
    spreads = [side.square().sum(1).sqrt() for side in centred]
    correlation = (centred[0] * centred[1]).sum(1) / (spreads[0] * spreads[1])
    constant = [((side == side[:, :1]) | ~is_there).all(1) for side in (loaded, now)]
    return torch.stack([lengths.double(), close.sum(1).double(), correlation, *(side.double() for side in constant)], 1)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _place_of(model: nn.Module, values: Sequence[_Loaded], *, taken: Mapping[str, Any]) -> str | None:
    """The name in ``model`` of a module of the class whose load the ``values`` are of, with parameters of their names
    and shapes of which nothing was loaded; None without one.
    """
    for name, module in model.named_modules():
        if type(module) is values[0].load.kind:
            shapes = {path: tuple(local(param).shape) for path, param in module.named_parameters()}
            if all(shapes.get(value.path) == value.shape for value in values) and not any(
                _joined(name, path) in taken for path in shapes
            ):
                return name
    return None


def _rows_added(param: Tensor, shape: tuple[int, ...]) -> int:
    """Rows that ``param`` has more than ``shape``, which is that of its beginning; 0 where it is of another form."""
    rows, *rest = tuple(local(param).shape) or (0,)
    return rows - shape[0] if shape and rest == [*shape[1:]] and rows > shape[0] else 0


def _elements(param: Tensor, shape: tuple[int, ...], *, rows_added: int = 0) -> Tensor | None:
    """Float32 [n]: elements at equal distances of ``param``, or of its first rows, which have this ``shape``; None
    where it has not, or its numbers cannot be read.
    """
    x = local(param).detach()
    is_form = tuple(x.shape) == shape or rows_added > 0
    if not is_form or not x.is_floating_point() or not is_readable(x) or not x.numel():
        return None
    x = (x[: shape[0]] if rows_added else x).reshape(-1)
    distance = -(-len(x) // MOST_ELEMENTS)
    # else all may be of one column
    distance += distance > 1 and shape[-1] % distance == 0
    return x[::distance].to(torch.float32, copy=True)
