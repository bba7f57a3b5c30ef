"""Elements of an optimizer's parameters, gradients and states that are looked at around one update, and their copies.

Contiguous elements at random places: one view and one copy a tensor, and whole SIMD blocks and warps are seen.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.job.environment import plain_value
from trueline.capture.model.layout import Layout, local
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.probes.around_update.masters import Copy, copies_of
from trueline.capture.probes.around_update.sampling import EARLY
from trueline.schema.text.secrets import redacted

NUM_SLICES, LENGTH = 32, 16
"""Slices a sample, and elements of each (16 float32 are one AVX-512 register): studies/laws measures their cost."""

FIRST, FEWER = 4, 8
"""Of the steps that are sampled one after the other, so many have all slices, and each later one has fewer: what is
wrong with every parameter shows in one slice, and the rotation goes on."""

NUM_COPIES = 8
"""Parameters whose copies in higher precision are looked at in a sample."""

_SCALAR_STATES = ("step", "mu_product", "param_norm")
"""Of a parameter, what is one number for all of its elements."""

_COUNTS = ("step", "steps", "t", "num_steps", "step_count")
"""Names that the count of updates has in the states of optimizers with rules of their own."""

PREDICTED_CLASSES = ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adamax", "NAdam")
"""Classes of ``torch.optim`` whose updates ``judge.updates.laws`` predicts; a subclass in front of its base."""

BOUNDED = {
    "torch.optim.Muon": "Muon",
    "torch.optim.Adafactor": "Adafactor",
    "transformers.optimization.Adafactor": "Adafactor",
    "lion_pytorch.lion_pytorch.Lion": "Lion",
    "torch_optimizer.lamb.Lamb": "Lamb",
}
"""Classes for which ``judge.updates.magnitudes`` has a bound."""

_OTHER_RULES = ("decoupled_wd", "adam")
"""Attributes by which the optimizers of ``BOUNDED`` follow another rule."""

_PLAIN = (Tensor, torch.nn.Parameter)

_NUMBER_BY_OPTIMIZER = ObjectTable[torch.optim.Optimizer, int]()
_next_numbers = itertools.count()
"""The number of each optimizer that was sampled, and those that are not yet given."""

MAX_OUTSIDE = 100
"""Names of parameters outside of the optimizer that a sample lists."""

NUM_ASIDE = 8
"""Parameters that are frozen, and that train outside of the optimizer, of which a sample has elements, of each."""


def law_of(optimizer: torch.optim.Optimizer) -> str:
    """The class of ``PREDICTED_CLASSES`` whose ``step`` and states the optimizer has, whatever its name, or its name
    in ``BOUNDED``; '' for any other, as a subclass with a step of its own.
    """
    optimizer_class = type(optimizer)
    for name in PREDICTED_CLASSES:
        torch_class = getattr(torch.optim, name)
        methods = ("step", "_init_group")
        if isinstance(optimizer, torch_class) and all(
            _plain(optimizer_class, method) is _plain(torch_class, method) for method in methods
        ):
            return name
    # by its full name: other packages have classes of these names that follow other rules
    bounded = BOUNDED.get(f"{optimizer_class.__module__}.{optimizer_class.__qualname__}", "")
    step = _plain(optimizer_class, "step")
    # a step that somebody replaced or inherited may be another rule
    is_own = step.__qualname__ == f"{optimizer_class.__qualname__}.step" and step.__module__.startswith(
        optimizer_class.__module__
    )
    is_plain = is_own and not any(getattr(optimizer, rule, False) for rule in _OTHER_RULES)
    return bounded if is_plain else ""


def _plain(owner: type, name: str) -> Any:
    """A method without what torch wraps around it."""
    return inspect.unwrap(getattr(owner, name))


def _number_of(optimizer: torch.optim.Optimizer) -> int:
    number = _NUMBER_BY_OPTIMIZER.get(optimizer)
    if number is None:
        number = next(_next_numbers)
        _NUMBER_BY_OPTIMIZER.set(optimizer, number)
    return number


def sampled_copies(
    optimizer: torch.optim.Optimizer, layout: Layout, *, random: random.Random
) -> list[tuple[Copy, int]]:
    """Of ``NUM_COPIES`` copies, at random, each with the first of the elements to look at."""
    copies = copies_of(optimizer, layout)
    chosen_copies = random.sample(copies, min(NUM_COPIES, len(copies)))
    return [(copy, random.randrange(max(copy.working.numel() - LENGTH, 0) + 1)) for copy in chosen_copies]


@dataclass(frozen=True)
class ParamSlice:
    """One slice of ``param``: ``num`` elements from the flat index ``start`` on; of a tensor that is not contiguous
    they are of one row.
    """

    param: Tensor
    name: str
    position: int
    group: int
    start: int
    num: int
    index: tuple[int, ...] | None
    shape: torch.Size

    def view(self, tensor: Tensor) -> Tensor | None:
        """[num] view of these elements of the parameter, its gradient or a state; None where it has none such."""
        memory = _memory(tensor)
        if not _is_readable(memory) or memory.shape != self.shape:
            return None
        # drawn by coordinates, as a gradient may have other strides than its parameter
        if self.index is not None:
            first = sum(coordinate * stride for coordinate, stride in zip(self.index, memory.stride(), strict=True))
            return torch.as_strided(memory, (self.num,), (memory.stride(-1),), memory.storage_offset() + first)
        if not memory.is_contiguous():
            return None
        return torch.as_strided(memory, (self.num,), (1,), memory.storage_offset() + self.start)


def _memory(tensor: Tensor) -> Tensor:
    """The tensor's own memory on this rank; of a DTensor without a node in the autograd graph, which costs more."""
    if type(tensor) in _PLAIN:
        return tensor
    inner = getattr(tensor, "_local_tensor", None)
    return local(tensor) if inner is None else inner


def _is_readable(memory: Tensor) -> bool:
    return memory.layout is torch.strided and memory.is_floating_point() and type(memory) in _PLAIN


def _is_whole(param: Tensor) -> bool:
    """True where its norm is what the optimizer computes: that of a DTensor is of all shards."""
    return type(param) in _PLAIN


def num_slices(age: int) -> int:
    """Slices of the sample ``age`` steps after the first."""
    return FEWER if FIRST <= age < EARLY else NUM_SLICES


def sample_slices(
    optimizer: torch.optim.Optimizer, layout: Layout, *, first: int, num: int = NUM_SLICES, random: random.Random
) -> tuple[list[ParamSlice], int]:
    """``num`` slices, in rotation from the parameter at ``first`` of all groups together, and the position at which the
    next sample is to begin. Small parameters are taken once a sample.
    """
    params = [(group, param) for group, settings in enumerate(optimizer.param_groups) for param in settings["params"]]
    names = {id(param): name for name, param in layout.frozen} if layout.frozen else {}
    slices: list[ParamSlice] = []
    # small models are gone through several times, at other random places
    for count in range(num if params else 0):
        position = (first + count) % len(params)
        group, param = params[position]
        memory = _memory(param)
        numel = memory.numel()
        # a second look at few elements would copy the same ones
        if not _is_readable(memory) or not numel or (count >= len(params) and numel <= LENGTH) or _is_shared(memory):
            continue
        index = layout.index_of.get(id(param))
        name = names.get(id(param), "") if index is None else layout.names[index]
        slices.append(_draw_slice(param, name, position, group, memory, random))
    return slices, (first + num) % max(len(params), 1)


def _is_shared(memory: Tensor) -> bool:
    """True where other processes write to it, as in Hogwild."""
    return memory.is_cpu and memory.untyped_storage().is_shared()


def slice_in(param: Tensor, layout: Layout, random: random.Random) -> ParamSlice | None:
    """A random slice of a parameter that ``layout`` has; None where it has no plain elements."""
    position = layout.index_of[id(param)]
    return slice_at(layout.names[position], param, random, position=position)


def slice_at(name: str, tensor: Tensor, random: random.Random, *, position: int = -1) -> ParamSlice | None:
    """A random slice of a tensor; None where it has no plain elements."""
    memory = _memory(tensor)
    if not _is_readable(memory) or not memory.numel() or _is_shared(memory):
        return None
    return _draw_slice(tensor, name, position, 0, memory, random)


def _draw_slice(
    param: Tensor, name: str, position: int, group: int, memory: Tensor, random: random.Random
) -> ParamSlice:
    if memory.is_contiguous():
        num = min(LENGTH, memory.numel())
        return ParamSlice(
            param, name, position, group, random.randrange(memory.numel() - num + 1), num, None, memory.shape
        )
    num = min(LENGTH, memory.shape[-1])
    index = (*(random.randrange(size) for size in memory.shape[:-1]), random.randrange(memory.shape[-1] - num + 1))
    start = 0
    for coordinate, size in zip(index, memory.shape, strict=True):
        start = start * size + coordinate
    return ParamSlice(param, name, position, group, start, num, index, memory.shape)


_BufferKey = tuple[torch.device, torch.dtype]


class Gathered:
    """Views of elements in the order in which they were added, and one copy of them all for each device and dtype."""

    def __init__(self) -> None:
        self._views: dict[_BufferKey, list[Tensor]] = {}
        self._order: list[tuple[_BufferKey, int]] = []
        self.num = 0
        """Elements that were added."""

    def add(self, view: Tensor) -> None:
        """Add a view [n]."""
        key = (view.device, view.dtype)
        self._order.append((key, view.shape[0]))
        self.num += view.shape[0]
        self._views.setdefault(key, []).append(view)

    def copy(self) -> None:
        """Copy what was added, on the device, and let go of it."""
        # one kernel for each device and dtype, whatever the number of views
        self._copies = {key: torch.cat(views) for key, views in self._views.items()}
        self._views = {}

    def hand_over(self, name: str) -> dict[str, Tensor]:
        """The copies by names that begin with ``name``, once."""
        copies, self._copies = self._copies, {}
        self._names = {key: f"{name}_{number}" for number, key in enumerate(copies)}
        return {self._names[key]: copy for key, copy in copies.items()}

    def values(self, host: Mapping[str, Tensor]) -> list[Tensor]:
        """Values that were added, in their order, from the copies that were handed over."""
        nums: dict[_BufferKey, list[int]] = {}
        for key, num in self._order:
            nums.setdefault(key, []).append(num)
        parts = {key: iter(host[self._names[key]].to(torch.float64).split(sizes)) for key, sizes in nums.items()}
        return [next(parts[key]) for key, _ in self._order]

    def flat(self, host: Mapping[str, Tensor]) -> list[Tensor]:
        """Values in the order of ``values``, in few pieces: one where all are of one device and dtype."""
        # one copy has everything in its order already; several have to be taken apart and interleaved
        (name, *more_names) = self._names.values() or ("",)
        return self.values(host) if more_names or not name else [host[name].to(torch.float64)]


class UpdateSample:
    """One update of ``optimizer`` at sampled ``slices``, and of ``copies`` what the forward pass used beside what is
    updated: call ``before`` and ``after`` around it. ``facts`` are what a reader needs to know of the values, ready for
    JSON.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        slices: Sequence[ParamSlice],
        *,
        copies: Sequence[tuple[Copy, int]] = (),
    ) -> None:
        self._optimizer, self._layout, self._slices, self._pairs = optimizer, layout, slices, copies
        self._law = law_of(optimizer)
        self._before, self._after = Gathered(), Gathered()
        self._roles: dict[tuple[tuple[str, str, int], ...], int] = {}
        self._offsets: list[tuple[int, int, int]] = []
        self._offsets_after: list[int] = []
        optimizer_class = type(optimizer)
        self.facts: dict[str, Any] = {
            "optimizer": f"{optimizer_class.__module__}.{optimizer_class.__qualname__}",
            "law": self._law,
            "made": _number_of(optimizer),
            "groups": {
                group: self._settings(group) for group in dict.fromkeys(param_slice.group for param_slice in slices)
            },
            "slices": [],
            **_outside_facts(optimizer, layout),
        }

    def before(self) -> None:
        """Copy parameters, gradients and states as the update finds them."""
        for param_slice in self._slices:
            grad = param_slice.param.grad
            entry = {
                "name": param_slice.name,
                "at": param_slice.position,
                "group": param_slice.group,
                "start": param_slice.start,
            }
            entry |= {"numel": param_slice.shape.numel(), "trains": param_slice.param.requires_grad}
            if self._law in BOUNDED.values() and _is_whole(param_slice.param):
                entry["shape"] = list(param_slice.shape)
            states = self._states(param_slice)
            offset = self._before.num
            entry |= {"grad": grad is not None, "before": self._add(self._before, param_slice, states, grad)}
            self._offsets.append((offset, param_slice.num, 0 if grad is None else param_slice.num))
            self.facts["slices"].append(entry | _plain_numbers(states, "before"))
        self.facts["extra"] = [name for name, value in self._extra() if _add_number(self._before, value)]
        self.facts["copies"] = [self._add_copy(copy, start) for copy, start in self._pairs]
        self.facts["aside"] = [
            self._add_aside(param_slice) for param_slice in _aside_slices(self._optimizer, self._layout)
        ]
        self._before.copy()

    def after(self) -> None:
        """Copy parameters and states as the update leaves them."""
        for param_slice, entry in zip(self._slices, self.facts["slices"], strict=True):
            states = self._states(param_slice)
            self._offsets_after.append(self._before.num + self._after.num)
            entry["after"] = self._add(self._after, param_slice, states, None)
            entry |= _plain_numbers(states, "after")
        self._after.copy()
        self.facts["roles"] = [[list(role) for role in roles] for roles in self._roles]

    def hand_over(self) -> dict[str, Tensor]:
        """The copies by name, to be brought to the host; what they are of is let go."""
        self._slices = self._pairs = ()
        del self._layout
        return self._before.hand_over("update_before") | self._after.hand_over("update_after")

    def values(self, host: Mapping[str, Tensor]) -> list[float]:
        """Values in the order in which they were added: before the update, then after it."""
        pieces = [*self._before.flat(host), *self._after.flat(host)]
        return torch.cat(pieces).tolist() if pieces else []

    def is_still(self, values: Sequence[float]) -> bool:
        """True if the elements of some parameter are as they were, though their gradient is not zero."""
        return any(
            values[offset : offset + num] == values[offset_after : offset_after + num]
            and any(values[offset + num : offset + num + num_grads])
            for (offset, num, num_grads), offset_after in zip(self._offsets, self._offsets_after, strict=False)
        )

    def _add(
        self, gathered: Gathered, param_slice: ParamSlice, states: Sequence[tuple[str, Any]], grad: Tensor | None
    ) -> int:
        """Add the views of ``param_slice``; the number of the list of roles that they have."""
        tensors: list[tuple[str, Any]] = [("param", param_slice.param), *([] if grad is None else [("grad", grad)])]
        roles: list[tuple[str, str, int]] = []
        for name, tensor in [*tensors, *states]:
            if not isinstance(tensor, Tensor):
                continue
            view = tensor.reshape(1) if name in _SCALAR_STATES and tensor.numel() == 1 else param_slice.view(tensor)
            if view is not None:
                gathered.add(view)
                roles.append((name, str(view.dtype).removeprefix("torch."), view.shape[0]))
        return self._roles.setdefault(tuple(roles), len(self._roles))

    def _add_copy(self, copy: Copy, start: int) -> list[Any]:
        """Name, number of elements, dtype of the working parameter, and whether the copy is certainly its own."""
        num = min(LENGTH, copy.working.numel() - start)
        for tensor in (copy.working, copy.master):
            self._before.add(tensor.detach()[start : start + num])
        return [copy.name, num, str(copy.working.dtype).removeprefix("torch."), copy.certain]

    def _add_aside(self, param_slice: ParamSlice) -> list[Any]:
        """Name, number of elements, how often it was written to, and whether it is to train."""
        memory = _memory(param_slice.param).detach()
        view = param_slice.view(memory)
        self._before.add(memory.new_zeros(0) if view is None else view)
        return [
            param_slice.name,
            0 if view is None else param_slice.num,
            param_slice.param._version,
            param_slice.param.requires_grad,
        ]

    def _states(self, param_slice: ParamSlice) -> list[tuple[str, Any]]:
        if self._law in BOUNDED.values():
            return [("param_norm", param_slice.param.detach().float().norm())] if _is_whole(param_slice.param) else []
        of_params = getattr(self._optimizer, "state", None)
        state = of_params.get(param_slice.param) if isinstance(of_params, Mapping) else None
        if not isinstance(state, dict):
            return []
        return list(state.items()) if self._law else _count(state)

    def _settings(self, group: int) -> dict[str, Any]:
        group_settings = self._optimizer.param_groups[group]
        return redacted(
            {key: plain_value(group_settings[key]) for key in group_settings if key not in ("params", "param_names")}
        )

    def _extra(self) -> Iterator[tuple[str, Any]]:
        """Other operands of the update: the scaler's part of a fused one, and settings that are on a device."""
        for name in ("grad_scale", "found_inf"):
            yield name, getattr(self._optimizer, name, None)
        for group in self.facts["groups"]:
            group_settings = self._optimizer.param_groups[group]
            for name, value in group_settings.items():
                if isinstance(value, Tensor) and value.device.type != "cpu":
                    yield f"{group}.{name}", value


def _count(state: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The count of updates in the state of one parameter, by the name that torch has for it."""
    count = next((state[name] for name in _COUNTS if name in state), None)
    is_number = type(count) in (int, float) or (type(count) is Tensor and count.numel() == 1)
    return [("step", count)] if is_number else []


def _plain_numbers(states: Sequence[tuple[str, Any]], when: str) -> dict[str, float]:
    """States that are plain numbers (``step`` in older checkpoints)."""
    return {f"{when}_{name}": float(value) for name, value in states if isinstance(value, (int, float))}


def _add_number(gathered: Gathered, value: Any) -> bool:
    """Add a tensor of one number, if it is one."""
    is_scalar = isinstance(value, Tensor) and value.numel() == 1
    if is_scalar:
        gathered.add(_memory(value).reshape(1))
    return is_scalar


def _outside_facts(optimizer: torch.optim.Optimizer, layout: Layout) -> dict[str, Any]:
    """The number of the optimizer's parameters that are the model's and train, and the names of those of the model that
    have a gradient and that it does not hold. Where it holds none that trains, also the names of frozen ones it holds.
    """
    held_ids = _held_ids(optimizer)
    num_held = sum(id(param) in held_ids for param in layout.params)
    outside_names = [
        name for name, param in _not_held(held_ids, layout) if param.requires_grad and param.grad is not None
    ]
    facts = {"num_held": num_held, "outside": outside_names[:MAX_OUTSIDE], "num_outside": len(outside_names)}
    if num_held:
        return facts
    frozen = [name for name, param in layout.frozen if id(param) in held_ids and not param.requires_grad]
    return facts | {"held_frozen": frozen[:MAX_OUTSIDE]}


def _held_ids(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    return frozenset(id(param) for group in optimizer.param_groups for param in group["params"])


def _not_held(held_ids: Collection[int], layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Of the model, also those that were frozen when watching began."""
    for name, param in (*zip(layout.names, layout.params, strict=True), *layout.frozen):
        if id(param) not in held_ids and param is not layout.absent:
            yield name, param


def _aside_slices(optimizer: torch.optim.Optimizer, layout: Layout) -> list[ParamSlice]:
    """Slices of parameters that the optimizer does not hold, equal ones in each sample."""
    slices: list[ParamSlice] = []
    params = list(_not_held(_held_ids(optimizer), layout))
    # so many of each, as models may have far more of one kind
    for trains in (False, True):
        candidates = [pair for pair in params if pair[1].requires_grad is trains]
        for name, param in random.Random(0).sample(candidates, min(NUM_ASIDE, len(candidates))):
            memory = _memory(param)
            if _is_readable(memory) and memory.numel() and not _is_shared(memory):
                slices.append(_draw_slice(param, name, -1, -1, memory, random.Random(name)))
    return slices
