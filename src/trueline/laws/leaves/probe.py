"""Walk the graph of the loss at a few steps, for the tensors that need a gradient: which are no parameters of the
model, which no optimizer holds, and what was computed of parameters before they were updated.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from trueline.capture.model import patches
from trueline.capture.model.contents import attributes, elements
from trueline.capture.model.graph import MAX_NODES
from trueline.capture.model.layout import clean_name, fsdp2_groups, local, named_parameters, unwrap
from trueline.capture.model.live_objects import instances_of
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses.descent import roots_of
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.passes import Contributions
from trueline.laws.leaves.columns import Holder, LossLeaves, OutsideLeaf
from trueline.tensor.digest import digest_each
from trueline.tensor.memory import is_readable

FIRST, FACTOR = 2, 4
"""Age of the first step that is looked at, when all parts of a job are there, and how many times as old the next is."""
MAX_PASSES = 4
"""Backward passes of a step that are looked at."""
MAX_OUTSIDE = 64
"""Tensors beside the model that a row names, and computations of parameters that are followed to the next look."""
MAX_ELEMENTS = 4096
"""Elements of a tensor by which it is known whether it has changed."""
MAX_ENTRIES, MAX_LENGTH, DEPTH = 10_000, 1_000, 3
"""Values that are looked at in attributes of the modules, in one container, and containers inside each other."""

SHARDING = ("fsdp1", "fsdp2", "deepspeed", "megatron")
"""Adapters of frameworks that put tensors of their own in the place of parameters."""

_REGISTERED = ("_parameters", "_buffers", "_modules")
_PLAIN_MODULES = ("builtins", "torch", "functools")
"""Of classes whose objects hold no tensors of the model's own."""

_VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        *("T", "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "Expand", "Select", "Slice", "Squeeze"),
        *("Unsqueeze", "Alias", "AsStrided", "Unbind", "Split", "SplitWithSizes", "Narrow", "Diagonal", "Unfold"),
    )
)
"""Operations that return the memory of what they are given: updates reach them."""


@dataclass
class _Graph:
    """What was found below the losses of a step: ``leaves`` by identity, ``computed`` (operation, its parameter)."""

    leaves: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    computed: list[tuple[Any, Tensor]] = field(default_factory=list[tuple[Any, Tensor]])
    is_complete: bool = True


@dataclass(frozen=True)
class _Look:
    """What is kept of one look until the next. The memory of tensors is not: only whether it is still there."""

    step: int
    storages: tuple[StorageWeakRef, ...]
    # kept alive, so that no operation of a later graph can have the identity of one of these
    computed: tuple[Any, ...]
    index_of: dict[int, int]
    """By address of a tensor's storage, or identity of a computation, the position in ``digests``."""
    digests: Tensor


class LeafProbe:
    """The columns ``loss_leaves`` and ``leaf_changes``, at a step that is early and at some that are later."""

    name = "leaves of the loss"
    moments = ("gradients",)
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model, self._guard = parts.model, parts.guard
        self._passes: Contributions = parts.contributions
        self._is_sharded = parts.watching.adapter.name in SHARDING
        self._next_age = FIRST
        self._last: _Look | None = None
        self._graph: _Graph | None = None
        self._num_passes = 0
        self._switch = patches.Switch()
        patches.backward.add(self._at_backward, switch=self._switch)

    def begin(self, step: Step) -> bool:
        due = step.watched and step.sampled and step.age >= self._next_age
        self._graph, self._num_passes = (_Graph() if due else None), 0
        self._switch.set(due)
        return due

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        self._graph = self._last = None

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``loss_leaves`` and, int64 [K], ``leaf_changes``; absent where the losses are not computed of the model."""
        graph, self._graph = self._graph, None
        self._switch.set(False)
        if graph is None or not graph.leaves:
            return {}
        name_of = self._param_names(graph, step)
        # not in `begin`: a step in which no graph was seen is no look, and the next sampled one is due
        self._next_age = FACTOR * max(step.age, 1)
        # The loss of a model beside this one, as of a critic.
        if not any(identity in name_of for identity in graph.leaves):
            return {}
        unregistered = {identity: leaf for identity, leaf in graph.leaves.items() if identity not in name_of}
        placed = self._placed(unregistered)
        rows = _with_names(placed[:MAX_OUTSIDE])
        params = [leaf for leaf, _ in rows]
        position_of = {identity: number for number, identity in enumerate(name_of)}
        computed = [(node, param) for node, param in graph.computed if name_of.get(id(param))]
        computed = sorted(computed, key=lambda pair: position_of[id(pair[1])])[:MAX_OUTSIDE]
        look, changes = self._compared(step, params, computed)
        last, self._last = self._last, look
        old = [name_of[id(param)] for node, param in computed if last is not None and id(node) in last.index_of]
        leaves = LossLeaves(
            of=len(graph.leaves) - len(unregistered),
            outside=tuple(replace(outside, again=_is_again(leaf, last)) for leaf, outside in rows),
            num_outside=len(placed),
            inputs=len(unregistered) - len(placed),
            old=tuple(old),
            last_step=None if last is None else last.step,
            complete=graph.is_complete,
            sharded=self._is_sharded,
        )
        return {"loss_leaves": leaves.to_json()} | ({} if changes is None else {"leaf_changes": changes})

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"leaf_changes": host["leaf_changes"].tolist()} if "leaf_changes" in host else {}

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if self._graph is None or self._passes.backward_pass is None or self._num_passes >= MAX_PASSES:
            return
        with self._guard(self.name):
            self._num_passes += 1
            _walk(roots_of(tensors), self._graph)

    def _param_names(self, graph: _Graph, step: Step) -> dict[int, str]:
        """Names of the model's parameters by identity, and of what a framework has in the place of some."""
        layout = step.layout
        name_of = {identity: layout.names[index] for identity, index in layout.index_of.items()}
        if all(identity in name_of for identity in graph.leaves):
            return name_of
        name_of |= {id(param): name for name, param in named_parameters(self._model)}
        name_of |= {id(param): clean_name(name) for name, param in self._model.named_parameters()}
        # FSDP2: the leaf is the gathered parameter, which modules have only while they compute
        for group in fsdp2_groups(self._model):
            name_of |= {id(getattr(param, "_unsharded_param", None)): "" for param in group.fsdp_params}
        return name_of | {id(leaf): "" for leaf in graph.leaves.values() if type(leaf).__name__ == "FlatParameter"}

    def _placed(self, unregistered: Mapping[int, Tensor]) -> list[tuple[Tensor, OutsideLeaf]]:
        """Who holds ``unregistered``; without those that nobody does and that are no parameters, as inputs."""
        if not unregistered:
            return []
        # Most jobs end above: what follows asks the garbage collector for all modules and optimizers.
        attribute_of = _hidden(unwrap(self._model), unregistered)
        module_of = _in_modules({identity for identity in unregistered if identity not in attribute_of})
        optimizer_of = _in_optimizers()
        rows: list[tuple[Tensor, OutsideLeaf]] = []
        for identity, leaf in unregistered.items():
            is_parameter = isinstance(leaf, nn.Parameter)
            name, trains = attribute_of.get(identity) or module_of.get(identity) or ("", True)
            holder: Holder = "nobody"
            if identity in attribute_of or identity in module_of:
                holder = "attribute" if identity in attribute_of else "module"
            # An input, a penalty's interpolation, a perturbation: nothing is to train it.
            if holder == "nobody" and (not is_parameter or self._is_sharded):
                continue
            optimizer = optimizer_of.get(identity, "")
            outside = OutsideLeaf(name, tuple(leaf.shape), holder, is_parameter, trains, optimizer, again=None)
            rows.append((leaf, outside))
        return rows

    def _compared(
        self, step: Step, leaves: Sequence[Tensor], computed: Sequence[tuple[Any, Tensor]]
    ) -> tuple[_Look, Tensor | None]:
        """What to keep until the next look, and, int64 [K], whether ``leaves`` and then the parameters of which
        something ``computed`` is used again have changed since the last; None without any.
        """
        nodes = [node for node, _ in computed]
        memory = [_some_elements(x) for x in (*leaves, *(param for _, param in computed))]
        device = step.layout.device
        digests = digest_each(memory, device) if memory else torch.zeros(0, dtype=torch.int64, device=device)
        keys = [*map(_address, leaves), *map(id, nodes)]
        storages = tuple(StorageWeakRef(local(leaf).untyped_storage()) for leaf in leaves if _address(leaf))
        index_of = {key: index for index, key in enumerate(keys)}
        last = self._last
        asked = [
            index
            for index, key in enumerate(keys)
            if index < len(leaves) or (last is not None and key in last.index_of)
        ]
        changes: list[Tensor] = []
        for index in asked:
            before = None if last is None or memory[index] is None else last.index_of.get(keys[index])
            is_same = index >= len(leaves) or _is_again(leaves[index], last)
            if last is None or before is None or not is_same:
                changes.append(torch.full((), -1, dtype=torch.int64, device=device))
            else:
                changes.append((digests[index] != last.digests[before]).long())
        look = _Look(step.number, storages, tuple(nodes), index_of, digests)
        return look, torch.stack(changes) if changes else None


def _walk(roots: Sequence[Tensor], graph: _Graph) -> None:
    """Put what is below ``roots`` into ``graph``."""
    ahead: list[Any] = [root.grad_fn for root in roots]
    visited = set[Any]()
    while ahead:
        node: Any = ahead.pop()
        if node is None or node in visited:
            continue
        if len(visited) >= MAX_NODES:
            graph.is_complete = False
            return
        visited.add(node)
        below = [inner for inner, _ in node.next_functions if inner is not None]
        ahead += below
        leaf = getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None
        if isinstance(leaf, Tensor):
            graph.leaves[id(leaf)] = leaf
        # nobody knows what a custom function computes: it may pass its input on, as hooks of frameworks do
        elif below and type(node).__name__ not in _VIEWS and not isinstance(node, BackwardCFunction):
            variable = getattr(below[0], "variable", None)
            if isinstance(variable, Tensor) and all(type(inner).__name__ == "AccumulateGrad" for inner in below):
                graph.computed.append((node, variable))


def _hidden(model: nn.Module, wanted: Mapping[int, Tensor]) -> dict[int, tuple[str, bool]]:
    """By identity, names of those of ``wanted`` that attributes of the model's modules lead to which register nothing,
    and whether they are of a part in training mode. No code of the user's runs.
    """
    names: dict[int, tuple[str, bool]] = {}
    search = _Attributes()
    for module_name, module in model.named_modules():
        owner = clean_name(module_name) if module_name else ""
        for key, value in list(attributes(module).items()):
            if key not in _REGISTERED and not key.endswith("_hooks"):
                for name, x, trains in search.tensors(f"{owner}.{key}".lstrip("."), value, DEPTH, module.training):
                    if id(x) in wanted:
                        names.setdefault(id(x), (name, trains))
    return names


class _Attributes:
    """Finds tensors that need a gradient in attributes, and stops after ``MAX_ENTRIES`` values."""

    def __init__(self) -> None:
        self._num_left = MAX_ENTRIES

    def tensors(self, name: str, value: Any, depth: int, trains: bool) -> Iterator[tuple[str, Tensor, bool]]:
        """The attribute itself, and what is in lists and dicts, in modules, and in plain objects."""
        kind = type(value)
        self._num_left -= 1
        if self._num_left < 0:
            return
        if issubclass(kind, Tensor):
            if value.requires_grad:
                yield name, value, trains
        elif issubclass(kind, nn.Module):
            for inner, module in value.named_modules():
                params = attributes(module).get("_parameters", {})
                self._num_left -= 1 + len(params)
                for key, param in params.items():
                    if param is not None and param.requires_grad:
                        yield ".".join(part for part in (name, inner, key) if part), param, module.training
        elif depth > 0:
            for key, inner in _entries(value, depth):
                yield from self.tensors(f"{name}.{key}", inner, depth - 1, trains)


def _entries(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """What a list or dict holds, its first values; of an object of any other class its attributes, if ``depth`` is left
    for what they hold.
    """
    kind = type(value)
    if issubclass(kind, (list, tuple)):
        yield from enumerate(itertools.islice(elements(value), MAX_LENGTH))
    elif issubclass(kind, dict):
        yield from list(itertools.islice(dict.items(value), MAX_LENGTH))
    elif depth > 1 and not issubclass(kind, type) and kind.__module__ not in _PLAIN_MODULES:
        for key, inner in list(attributes(value).items())[:MAX_LENGTH]:
            # Objects that hold objects lead to trainers, loggers, the whole job.
            if issubclass(type(inner), (Tensor, nn.Module, list, tuple, dict)):
                yield key, inner


def _in_modules(wanted: set[int]) -> dict[int, tuple[str, bool]]:
    """By identity, names of those of ``wanted`` that a module has which is alive, from the outermost that has it, and
    whether that part is in training mode.
    """
    if not wanted:
        return {}
    # one whose __init__ has not come to nn.Module's has no _modules yet
    alive = [module for module in instances_of(nn.Module) if isinstance(attributes(module).get("_modules"), dict)]
    around = {id(part): (module, key) for module in alive for key, part in module._modules.items()}
    names: dict[int, tuple[str, bool]] = {}
    for module in alive:
        for key, param in attributes(module).get("_parameters", {}).items():
            if id(param) in wanted:
                names[id(param)] = f"{_way_to(module, around)}.{key}", module.training
    return names


def _way_to(module: nn.Module, around: Mapping[int, tuple[nn.Module, str]]) -> str:
    """``Encoder.layers.0``: the class of the outermost module, and from there."""
    path: list[str] = []
    while id(module) in around and len(path) < MAX_LENGTH:
        module, key = around[id(module)]
        path.append(key)
    return ".".join([type(module).__name__, *([clean_name(".".join(path[::-1]))] if path else [])])


def _with_names(rows: Sequence[tuple[Tensor, OutsideLeaf]]) -> list[tuple[Tensor, OutsideLeaf]]:
    """``rows`` with ``Trainer.log_vars`` for a tensor without a name: what an object, or a module of Python, has it as;
    still '' where none is known to.
    """
    nameless = {id(leaf): leaf for leaf, outside in rows if not outside.name}
    if not nameless:
        return list(rows)
    names: dict[int, str] = {}
    # One call for all: it goes through all objects of the process.
    for owner in gc.get_referrers(*nameless.values()):
        is_dict = type(owner) is dict
        for key, value in list((owner if is_dict else attributes(owner)).items()):
            if id(value) in nameless and isinstance(key, str):
                names.setdefault(id(value), key if is_dict else f"{type(owner).__name__}.{key}")
    return [(leaf, replace(outside, name=outside.name or names.get(id(leaf), ""))) for leaf, outside in rows]


def _in_optimizers() -> dict[int, str]:
    """The class of an optimizer that is alive, by the identity of each parameter that it holds."""
    held: dict[int, str] = {}
    for optimizer in instances_of(Optimizer):
        for group in attributes(optimizer).get("param_groups", ()):
            held |= {id(param): type(optimizer).__name__ for param in group["params"]}
    return held


def _some_elements(x: Tensor) -> Tensor | None:
    """Up to ``MAX_ELEMENTS`` of them, at a distance that is prime to their number; None where they cannot be read."""
    memory = local(x).detach()
    if not is_readable(memory) or not memory.numel():
        return None
    distance = max(memory.numel() // MAX_ELEMENTS, 1)
    while distance > 1 and math.gcd(distance, memory.numel()) > 1:
        distance += 1
    if memory.is_contiguous():
        return memory.reshape(-1)[::distance]
    # Cut first: flattening copies what is not contiguous.
    num_rows = max(MAX_ELEMENTS * len(memory) // memory.numel(), 1)
    return memory[:num_rows].flatten()[:MAX_ELEMENTS]


def _address(leaf: Tensor) -> int:
    """Of the storage of ``leaf``, as ``StorageWeakRef`` has it; 0 where it has none."""
    memory = local(leaf)
    return memory.untyped_storage()._cdata if is_readable(memory) else 0


def _is_again(leaf: Tensor, last: _Look | None) -> bool | None:
    """True if it has the memory that one had at the last look; None where there was none."""
    if last is None:
        return None
    address = _address(leaf)
    return any(storage.cdata == address and not storage.expired() for storage in last.storages)


def make_probe(parts: ProbeParts) -> LeafProbe:
    """The probe of this law for one watched model."""
    return LeafProbe(parts)
