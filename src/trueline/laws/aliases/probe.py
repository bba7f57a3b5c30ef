"""Names that the job has for the module that it trains, and loads of a module from its own tensors."""

from __future__ import annotations

import gc
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from trueline.capture.job.configs_in_sight import locals_of_job
from trueline.capture.model import patches
from trueline.capture.model.contents import attributes
from trueline.capture.model.layout import local, unwrap
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.tensor.memory import is_readable

MAX_PARTS = 32
"""Direct parts of the model whose names are looked at, too."""

MAX_INSIDE = 1_000
"""Modules of the model that are asked for names of their parts."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_COPIES = frozenset(
    {"target", "targ", "tgt", "ref", "reference", "teacher", "ema", "averaged", "average", "shadow", "old", "frozen"}
)
"""Words by which names call a network the copy of another one."""
_BY_ITSELF = frozenset({"reference", "teacher", "ema"})
"""Of these, words that name a network without another word; a ``target`` is many things."""


class AliasProbe:
    """The columns ``module_aliases``, once, and ``own_loads``, where there were any."""

    name = "names of the model"
    moments = ("update",)
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model, self._guard = parts.model, parts.guard
        self._inner_ids: frozenset[int] = frozenset()
        self._num_loads = 0
        self._looked = False
        patches.module_load.add(self._at_load)

    def begin(self, step: Step) -> bool:
        return step.watched and (not self._looked or self._num_loads > 0)

    def detach(self) -> None:
        patches.module_load.remove(self._at_load)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        columns: dict[str, Any] = {"own_loads": self._num_loads} if self._num_loads else {}
        self._num_loads = 0
        if not self._looked:
            self._looked = True
            inner = unwrap(self._model)
            self._inner_ids = frozenset(id(module) for module in inner.modules())
            # the reference of a model with adapters is often the model itself, with these switched off
            if all(param.requires_grad for param in inner.parameters()) and (aliases := list(_aliases(self._model))):
                columns["module_aliases"] = json.dumps(aliases)
        return columns

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _at_load(self, module: nn.Module, state_dict: Any = None, *args: Any, **kwargs: Any) -> None:
        """Called before each load, of any module."""
        if id(module) in self._inner_ids:
            with self._guard(self.name):
                self._num_loads += issubclass(type(state_dict), Mapping) and _is_own(module, state_dict)


def _is_own(module: nn.Module, state_dict: Mapping[Any, Any]) -> bool:
    """True if all parameters are in it, and each is given its own memory."""
    params = dict(module.named_parameters(remove_duplicate=False))
    if len(params) < 2:
        return False
    for name, param in params.items():
        value = state_dict.get(name)
        if not isinstance(value, Tensor):
            return False
        memory, weights = local(value), local(param)
        if not (is_readable(memory) and is_readable(weights)) or memory.data_ptr() != weights.data_ptr():
            return False
    return True


def _aliases(model: nn.Module) -> Iterator[tuple[str, str, str]]:
    """The holder, the name that calls a module a copy, and another name that the holder has for that module."""
    inner = unwrap(model)
    children = list(inner.children())
    modules = [module for module in (model, inner, *children[:MAX_PARTS]) if any(True for _ in module.parameters())]
    number_of = {id(module): number for number, module in enumerate(modules)}
    number_of[id(inner)] = number_of.get(id(model), 0)  # as the script wrapped it
    for holder, values in _holders(modules):
        names: dict[int, list[str]] = {}
        for name, value in values.items():
            if id(value) in number_of and isinstance(name, str):
                names.setdefault(number_of[id(value)], []).append(name)
        for same in names.values():
            usual = [name for name in same if not _calls_it_a_copy(name)]
            for name in same:
                if usual and _calls_it_a_copy(name):
                    yield holder, name, usual[0]


def _holders(modules: list[nn.Module]) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Names of objects, modules of Python and running functions that hold ``modules``, with what they have by name."""
    yield from locals_of_job()
    inside = list(itertools.islice(modules[0].modules(), MAX_INSIDE))
    for module in inside:
        yield type(module).__name__, module._modules
    visited = {id(table) for module in inside for table in (module, module._modules, attributes(module))}
    ahead: list[Any] = modules
    # an object, its attributes, and the parts of a module among these: each refers to the next
    for _ in range(3):
        owners = [owner for owner in gc.get_referrers(*ahead) if id(owner) not in visited]
        visited |= {id(owner) for owner in owners}
        for owner in owners:
            if type(owner) is dict:
                if "__name__" in owner:
                    yield str(owner["__name__"]), owner
            elif type(owner).__module__.partition(".")[0] != "trueline" and (values := attributes(owner)):
                parts = values.get("_modules")
                yield type(owner).__name__, {**values, **(parts if isinstance(parts, dict) else {})}
        ahead = [owner for owner in owners if type(owner) is dict and "__name__" not in owner]
        if not ahead:
            return


def _calls_it_a_copy(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _COPIES and (len(words) > 1 or word in _BY_ITSELF) for word in words)


def make_probe(parts: ProbeParts) -> AliasProbe:
    """The probe of this law for one watched model."""
    return AliasProbe(parts)
