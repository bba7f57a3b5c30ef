"""What was loaded into modules of this process before training, and what of it found no place there; and modules that
were given their own state, at any time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model import patches
from trueline.capture.model.imports import when_imported
from trueline.capture.model.layout import clean_name, local
from trueline.capture.probes.loaded_values import LoadedValues, Place
from trueline.capture.step.call_sites import call_sites
from trueline.tensor.memory import is_readable

MOST_LOADS, MOST_NAMES = 64, 4_096
"""Loads, and names of each, that are kept."""
MOST_TENSORS, MOST_ELEMENTS = 8, 16
"""Tensors of a module that was given its own state, and elements of each, that are compared with those at the next."""

Named = tuple[str, tuple[int, ...] | None]
"""The name of a tensor and its shape, None where that is not known."""


@dataclass(eq=False)
class _Load:
    """One load into ``module``: of ``num`` tensors, those that had no place (``unexpected``, of which those below the
    key ``nested`` stand in a mapping of their own), and of the module's those that it did not fill, by place.
    """

    module: weakref.ref[nn.Module]
    call: str
    line: str
    num: int
    num_own: int
    unexpected: list[Named]
    missing: dict[Place, Named]
    nested: str = ""
    file: str = ""
    num_tensors: int = 0


@dataclass(eq=False)
class _OwnLoad:
    """Loads at ``line`` of the state of ``module`` into itself: how many, some of its elements at the last of them, and
    [] whether they were others at one before.
    """

    module: weakref.ref[nn.Module]
    key: int
    line: str
    num: int
    elements: Tensor
    has_changed: Tensor


@dataclass(frozen=True)
class _File:
    """Tensors of the last file that ``torch.load`` read."""

    name: str
    tensors: list[Named] = field(default_factory=list[Named])


class Loads:
    """Loads of this process, from ``listen`` on until somebody asks for those of a model that begins to train."""

    def __init__(self) -> None:
        self._loads: list[_Load] = []
        self._filled: set[Place] = set()
        self._file: _File | None = None
        self._own: list[_OwnLoad] = []
        self.num_own = 0
        """Loads of a module's own state into it so far."""
        self.values = LoadedValues()
        self._has_updated = False
        self._report: patches.PatchedCall | None = None
        self._awaits = False
        self.listens = False

    def listen(self) -> None:
        """Look at loads from now on."""
        if not self.listens:
            self.listens = True
            patches.module_load.add(self._at_load, after=True)
            patches.file_load.add(self._at_file, after=True)
            patches.update_begins.add(self._at_first_update)
            if self._report is not None:
                self._report.add(self._at_report)
            elif not self._awaits:
                self._awaits = True
                when_imported("transformers.modeling_utils", self._at_transformers)

    def stop(self) -> None:
        """Look at none any more, and forget all."""
        if self.listens:
            patches.module_load.remove(self._at_load)
            patches.file_load.remove(self._at_file)
            if self._report is not None:
                self._report.remove(self._at_report)
            self.listens, self._loads, self._filled, self._file = False, [], set(), None
            self._own, self.num_own = [], 0
            self.values, self._has_updated = LoadedValues(), False
            patches.update_begins.remove(self._at_first_update)

    def beside(self, model: nn.Module) -> Iterator[dict[str, Any]]:
        """Of each load that left something out, as the column ``loads`` has it, with the name that its module has in
        ``model``.
        """
        names = {id(module): clean_name(name) for name, module in model.named_modules()}
        for load in self._loads:
            module = load.module()
            if module is not None and load.missing and (load.unexpected or load.num_own):
                yield {
                    "into": type(module).__name__,
                    "name": names.get(id(module)),
                    "call": load.call,
                    "line": load.line,
                    "num": load.num,
                    "num_own": load.num_own,
                    "num_tensors": load.num_tensors,
                    "unexpected": load.unexpected[:MOST_NAMES],
                    "missing": list(load.missing.values())[:MOST_NAMES],
                    "nested": load.nested,
                    "file": load.file,
                }

    def own_beside(self, model: nn.Module) -> list[tuple[dict[str, Any], Tensor]]:
        """Of each module that is no part of ``model`` and was given its own state, as the column ``self_loads`` has it,
        and [] whether it has changed between two such loads.
        """
        inside = {id(module) for module in model.modules()} if self._own else set[int]()
        alive = [
            (load, module) for load in self._own if (module := load.module()) is not None and id(module) not in inside
        ]
        return [
            (
                {
                    "key": load.key,
                    "into": type(module).__name__,
                    "line": load.line,
                    "num": load.num,
                },
                load.has_changed,
            )
            for load, module in alive
        ]

    def filled(self, model: nn.Module) -> set[str]:
        """Names of what has been loaded of ``model``."""
        return {
            clean_name(f"{prefix}.{name}".lstrip("."))
            for prefix, module in model.named_modules()
            for name in (*module._parameters, *module._buffers)
            if (id(module), name) in self._filled
        }

    def _at_first_update(self, *args: Any) -> None:
        """Loads while training goes on are many, as of a target network, and need not be those of its beginning."""
        self._has_updated = True
        patches.update_begins.remove(self._at_first_update)

    def _at_file(self, loaded: Any, file: Any = None, *args: Any, **kwargs: Any) -> None:
        tensors, _, _ = _tensors_of(loaded) if isinstance(loaded, Mapping) else ([], "", 0)
        if tensors:
            name = Path(file).name if isinstance(file, (str, Path)) else ""
            self._file = _File(name, tensors[:MOST_NAMES])

    def _at_load(
        self, result: Any, module: nn.Module, state_dict: Any = None, *args: Any, assign: bool = False, **kwargs: Any
    ) -> None:
        missing, unexpected = getattr(result, "missing_keys", None), getattr(result, "unexpected_keys", None)
        if not isinstance(state_dict, Mapping) or not isinstance(missing, list) or not isinstance(unexpected, list):
            return
        places = _places(module)
        own = set[str]() if assign or args[1:] else set(_own(places, state_dict))
        if own and all(name in own for name, (_, tensor) in places.items() if tensor.numel()):
            self._note_own(module, [tensor for _, tensor in places.values()])
        tensors, nested, num = _tensors_of(state_dict)
        no_place = set(unexpected)
        left = [named for named in tensors if nested or named[0] in no_place]
        # what is the module's own already is no load: the rest may have had no place where the two were merged
        file = self._file if own and not left else None
        if file is not None:
            left = [named for named in file.tensors if named[0] not in places]
        self._note(
            module,
            "load_state_dict(strict=False)" if no_place or missing else "load_state_dict",
            places,
            not_filled=own.union(missing),
            load=(left, num, len(own), nested, "" if file is None else file.name),
        )

    def _note_own(self, module: nn.Module, tensors: list[Tensor]) -> None:
        """Keep that ``module`` was given its own state; without a wait for its device."""
        elements = _few_elements(tensors)
        if elements is None:
            return
        self.num_own += 1
        line = call_sites.line_now()
        self._own = [load for load in self._own if load.module() is not None]
        load = next((load for load in self._own if load.module() is module and load.line == line), None)
        if load is not None and load.elements.shape == elements.shape and load.elements.device == elements.device:
            load.num, load.has_changed = load.num + 1, load.has_changed | (load.elements != elements).any()
            load.elements = elements
        elif load is None and len(self._own) < MOST_LOADS:
            has_changed = torch.zeros((), dtype=torch.bool, device=elements.device)
            self._own.append(_OwnLoad(weakref.ref(module), self.num_own, line, 1, elements, has_changed))

    def _at_transformers(self, module: ModuleType) -> None:
        if hasattr(module, "log_state_dict_report"):
            self._report = patches.PatchedCall(module, "log_state_dict_report")
            if self.listens:
                self._report.add(self._at_report)

    def _at_report(self, model: Any = None, loading_info: Any = None, **kwargs: Any) -> None:
        """``from_pretrained`` of transformers 5 ends with a report on what was missing."""
        missing, unexpected = (getattr(loading_info, name, None) for name in ("missing_keys", "unexpected_keys"))
        if isinstance(model, nn.Module) and isinstance(missing, set) and isinstance(unexpected, set):
            places = _places(model)
            num = len(places.keys() - missing) + len(unexpected)
            left: list[Named] = [(str(name), None) for name in sorted(unexpected)]
            self._note(model, "from_pretrained", places, not_filled=missing, load=(left, num, 0, "", ""))

    def _note(
        self,
        module: nn.Module,
        call: str,
        places: Mapping[str, tuple[Place, Tensor]],
        *,
        not_filled: set[str],
        load: tuple[list[Named], int, int, str, str],
    ) -> None:
        """Keep the load, and take from those before what it has filled."""
        filled_tensors = {id(tensor) for name, (_, tensor) in places.items() if name not in not_filled}
        filled = {place for place, tensor in places.values() if id(tensor) in filled_tensors}
        self._filled |= filled
        if self._has_updated:
            self.values.forget([*filled])
        else:
            filled_by_name = {name: at for name, at in places.items() if at[0] in filled}
            self.values.note(module, call, call_sites.line_now(), filled_by_name)
        for earlier in self._loads:
            for place in filled & earlier.missing.keys():
                del earlier.missing[place]
        unexpected, num, num_own, nested, file = load
        missing: dict[Place, Named] = {
            place: (name, tuple(tensor.shape)) for name, (place, tensor) in places.items() if place not in filled
        }
        # a later load may have been the right one, and the next may be: those that have no lack any more go first
        self._loads = [earlier for earlier in self._loads if earlier.missing][-MOST_LOADS + 1 :]
        if missing:
            line = call_sites.line_now()
            self._loads.append(
                _Load(weakref.ref(module), call, line, num, num_own, unexpected, missing, nested, file, len(places))
            )


def _places(module: nn.Module) -> dict[str, tuple[Place, Tensor]]:
    """Tensors that ``module`` saves, by name."""
    places: dict[str, tuple[Place, Tensor]] = {}
    for prefix, part in module.named_modules():
        at = f"{prefix}." if prefix else ""
        transient = part._non_persistent_buffers_set
        buffers = {name: tensor for name, tensor in part._buffers.items() if name not in transient}
        for name, tensor in (part._parameters | buffers).items():
            if tensor is not None:
                places[at + name] = (id(part), name), tensor
    return places


def _own(places: Mapping[str, tuple[Place, Tensor]], state_dict: Mapping[Any, Any]) -> Iterator[str]:
    """Names of what ``state_dict`` has in the memory of the module itself."""
    for name, (_, tensor) in places.items():
        value = state_dict.get(name)
        if not isinstance(value, Tensor) or not tensor.numel():
            continue
        given, memory = local(value), local(tensor)
        if is_readable(given) and is_readable(memory) and given.data_ptr() == memory.data_ptr():
            yield name


def _few_elements(tensors: list[Tensor]) -> Tensor | None:
    """Some elements of some of the ``tensors``, of those that may be trained if there are any; None of no numbers."""
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    chosen = [local(tensor).detach() for tensor in numbers if tensor.requires_grad] or [local(x) for x in numbers]
    chosen = [x for x in chosen if x.numel() and x.device == chosen[0].device]
    few = chosen[:: -(-len(chosen) // MOST_TENSORS)] + chosen[-1:] if chosen else []
    return torch.cat([x.flatten()[:MOST_ELEMENTS].float() for x in few]) if few else None


def _tensors_of(mapping: Mapping[Any, Any]) -> tuple[list[Named], str, int]:
    """Tensors of a checkpoint with their names, the key below which most of them stand in a mapping of their own ('' of
    those that stand in none), and how many they are.
    """
    below = {key: _direct(value) for key, value in mapping.items() if isinstance(value, Mapping)}
    key = max(below, key=lambda key: len(below[key]), default="")
    tensors = _direct(mapping)
    is_nested = bool(below) and len(below[key]) > len(tensors)
    chosen = below[key] if is_nested else tensors
    return chosen, str(key) if is_nested else "", len(chosen)


def _direct(mapping: Mapping[Any, Any]) -> list[Named]:
    return [(str(name), tuple(value.shape)) for name, value in mapping.items() if isinstance(value, Tensor)]


loads = Loads()
"""One for the process: models are made and loaded before anybody knows which is trained."""
