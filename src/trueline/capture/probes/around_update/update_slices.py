"""Which elements of an optimizer's parameters, gradients and states are looked at around one update, and their copies.

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
"""Slices a sample, and elements of each (16 float32 are one AVX-512 register): benchmarks/laws measures their cost."""

FIRST, FEWER = 4, 8
"""Of the steps that are sampled one after the other, so many have all slices, and each later one has fewer: what is
wrong with every parameter shows in one slice, and the rotation goes on."""

NUM_COPIES = 8
"""Parameters whose copies in higher precision are looked at in a sample."""

_NUMBERS = ("step", "mu_product", "param_norm")
"""Of a parameter, what is one number for all of its elements."""

KNOWN = ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adamax", "NAdam")
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

_MADE = ObjectTable[torch.optim.Optimizer, int]()
_numbers = itertools.count()
"""The number of each optimizer that was sampled, and those that are left."""

MAX_OUTSIDE = 100
"""Names of parameters outside of the optimizer that a sample lists."""

NUM_ASIDE = 8
"""Parameters that are frozen, and that train outside of the optimizer, of which a sample has elements, of each."""


def law_of(optimizer: torch.optim.Optimizer) -> str:
    """The class of ``KNOWN`` whose ``step`` and states the optimizer has, whatever it is called, or its name in
    ``BOUNDED``; '' for any other, as a subclass with a step of its own.
    """
    own = type(optimizer)
    for name in KNOWN:
        known = getattr(torch.optim, name)
        parts = ("step", "_init_group")
        if isinstance(optimizer, known) and all(_plain(own, part) is _plain(known, part) for part in parts):
            return name
    bounded = BOUNDED.get(f"{own.__module__}.{own.__qualname__}", "")
    step = _plain(own, "step")
    is_own = step.__qualname__ == f"{own.__qualname__}.step" and step.__module__.startswith(own.__module__)
    plain = is_own and not any(getattr(optimizer, rule, False) for rule in _OTHER_RULES)
    return bounded if plain else ""


def _plain(of: type, name: str) -> Any:
    """A method without what torch wraps around it."""
    return inspect.unwrap(getattr(of, name))


def _number_of(optimizer: torch.optim.Optimizer) -> int:
    number = _MADE.get(optimizer)
    if number is None:
        number = next(_numbers)
        _MADE.set(optimizer, number)
    return number


def sampled_copies(
    optimizer: torch.optim.Optimizer, layout: Layout, *, random: random.Random
) -> list[tuple[Copy, int]]:
    """Of ``NUM_COPIES`` copies, at random, each with the first of the elements to look at."""
    every = copies_of(optimizer, layout)
    some = random.sample(every, min(NUM_COPIES, len(every)))
    return [(copy, random.randrange(max(copy.working.numel() - LENGTH, 0) + 1)) for copy in some]


@dataclass(frozen=True)
class Place:
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

    def of(self, tensor: Tensor) -> Tensor | None:
        """[num] view of these elements of the parameter, its gradient or a state; None where it has none such."""
        own = _memory(tensor)
        if not _is_plain(own) or own.shape != self.shape:
            return None
        if self.index is not None:
            first = sum(at * stride for at, stride in zip(self.index, own.stride(), strict=True))
            return torch.as_strided(own, (self.num,), (own.stride(-1),), own.storage_offset() + first)
        if not own.is_contiguous():
            return None
        return torch.as_strided(own, (self.num,), (1,), own.storage_offset() + self.start)


def _memory(tensor: Tensor) -> Tensor:
    """The tensor's own memory on this rank; of a DTensor without a node in the autograd graph, which costs more."""
    if type(tensor) in _PLAIN:
        return tensor
    inner = getattr(tensor, "_local_tensor", None)
    return local(tensor) if inner is None else inner


def _is_plain(own: Tensor) -> bool:
    return own.layout is torch.strided and own.is_floating_point() and type(own) in _PLAIN


def _is_whole(param: Tensor) -> bool:
    """Whether its norm is what the optimizer computes: that of a DTensor is of all shards."""
    return type(param) in _PLAIN


def num_slices(age: int) -> int:
    """Slices of the sample ``age`` steps after the first."""
    return FEWER if FIRST <= age < EARLY else NUM_SLICES


def places_of(
    optimizer: torch.optim.Optimizer, layout: Layout, *, first: int, num: int = NUM_SLICES, random: random.Random
) -> tuple[list[Place], int]:
    """``num`` places, in rotation from the parameter at ``first`` of all groups together, and where the next sample is
    to begin. Small parameters are taken once a sample.
    """
    every = [(group, param) for group, held in enumerate(optimizer.param_groups) for param in held["params"]]
    names = {id(param): name for name, param in layout.frozen} if layout.frozen else {}
    found: list[Place] = []
    for count in range(num if every else 0):
        position = (first + count) % len(every)
        group, param = every[position]
        own = _memory(param)
        numel = own.numel()
        if not _is_plain(own) or not numel or (count >= len(every) and numel <= LENGTH) or _is_shared(own):
            continue
        at = layout.index_of.get(id(param))
        name = names.get(id(param), "") if at is None else layout.names[at]
        found.append(_place(param, name, position, group, own, random))
    return found, (first + num) % max(len(every), 1)


def _is_shared(own: Tensor) -> bool:
    """Whether other processes write to it, as in Hogwild."""
    return own.is_cpu and own.untyped_storage().is_shared()


def place_in(param: Tensor, layout: Layout, random: random.Random) -> Place | None:
    """A random place in a parameter that ``layout`` has; None where it has no plain elements."""
    at = layout.index_of[id(param)]
    return place_at(layout.names[at], param, random, position=at)


def place_at(name: str, tensor: Tensor, random: random.Random, *, position: int = -1) -> Place | None:
    """A random place in a tensor; None where it has no plain elements."""
    own = _memory(tensor)
    if not _is_plain(own) or not own.numel() or _is_shared(own):
        return None
    return _place(tensor, name, position, 0, own, random)


def _place(param: Tensor, name: str, position: int, group: int, own: Tensor, random: random.Random) -> Place:
    if own.is_contiguous():
        num = min(LENGTH, own.numel())
        return Place(param, name, position, group, random.randrange(own.numel() - num + 1), num, None, own.shape)
    num = min(LENGTH, own.shape[-1])
    index = (*(random.randrange(size) for size in own.shape[:-1]), random.randrange(own.shape[-1] - num + 1))
    start = 0
    for at, size in zip(index, own.shape, strict=True):
        start = start * size + at
    return Place(param, name, position, group, start, num, index, own.shape)


Key = tuple[torch.device, torch.dtype]


class Gathered:
    """Views of elements in the order in which they were added, and one copy of them all for each device and dtype."""

    def __init__(self) -> None:
        self._views: dict[Key, list[Tensor]] = {}
        self._order: list[tuple[Key, int]] = []
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
        self._copies = {key: torch.cat(views) for key, views in self._views.items()}
        self._views = {}

    def hand_over(self, name: str) -> dict[str, Tensor]:
        """The copies by names that begin with ``name``, once."""
        copies, self._copies = self._copies, {}
        self._names = {key: f"{name}_{place}" for place, key in enumerate(copies)}
        return {self._names[key]: copy for key, copy in copies.items()}

    def values(self, host: Mapping[str, Tensor]) -> list[Tensor]:
        """What was added, in its order, from the copies that were handed over."""
        nums: dict[Key, list[int]] = {}
        for key, num in self._order:
            nums.setdefault(key, []).append(num)
        parts = {key: iter(host[self._names[key]].to(torch.float64).split(each)) for key, each in nums.items()}
        return [next(parts[key]) for key, _ in self._order]

    def flat(self, host: Mapping[str, Tensor]) -> list[Tensor]:
        """The same one after the other, in few pieces: one where all are of one device and dtype."""
        (name, *others) = self._names.values() or ("",)
        return self.values(host) if others or not name else [host[name].to(torch.float64)]


class UpdateSample:
    """One update of ``optimizer`` at sampled ``places``, and of ``copies`` what the forward pass used beside what is
    updated: call ``before`` and ``after`` around it. ``facts`` are what a reader needs to know of the values, ready for
    JSON.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        places: Sequence[Place],
        *,
        copies: Sequence[tuple[Copy, int]] = (),
    ) -> None:
        self._optimizer, self._layout, self._places, self._pairs = optimizer, layout, places, copies
        self._law = law_of(optimizer)
        self._before, self._after = Gathered(), Gathered()
        self._roles: dict[tuple[tuple[str, str, int], ...], int] = {}
        self._found: list[tuple[int, int, int]] = []
        self._left: list[int] = []
        own = type(optimizer)
        self.facts: dict[str, Any] = {
            "optimizer": f"{own.__module__}.{own.__qualname__}",
            "law": self._law,
            "made": _number_of(optimizer),
            "groups": {group: self._settings(group) for group in dict.fromkeys(place.group for place in places)},
            "slices": [],
            **_outside(optimizer, layout),
        }

    def before(self) -> None:
        """Copy parameters, gradients and states as the update finds them."""
        for place in self._places:
            grad = place.param.grad
            entry = {"name": place.name, "at": place.position, "group": place.group, "start": place.start}
            entry |= {"numel": place.shape.numel(), "trains": place.param.requires_grad}
            if self._law in BOUNDED.values() and _is_whole(place.param):
                entry["shape"] = list(place.shape)
            states = self._states(place)
            at = self._before.num
            entry |= {"grad": grad is not None, "before": self._add(self._before, place, states, grad)}
            self._found.append((at, place.num, 0 if grad is None else place.num))
            self.facts["slices"].append(entry | _plain_numbers(states, "before"))
        self.facts["extra"] = [name for name, value in self._extra() if _add_number(self._before, value)]
        self.facts["copies"] = [self._add_copy(copy, start) for copy, start in self._pairs]
        self.facts["aside"] = [self._add_aside(place) for place in _aside(self._optimizer, self._layout)]
        self._before.copy()

    def after(self) -> None:
        """Copy parameters and states as the update leaves them."""
        for place, entry in zip(self._places, self.facts["slices"], strict=True):
            states = self._states(place)
            self._left.append(self._before.num + self._after.num)
            entry["after"] = self._add(self._after, place, states, None)
            entry |= _plain_numbers(states, "after")
        self._after.copy()
        self.facts["roles"] = [[list(role) for role in roles] for roles in self._roles]

    def hand_over(self) -> dict[str, Tensor]:
        """The copies by name, to be brought to the host; what they are of is let go."""
        self._places = self._pairs = ()
        del self._layout
        return self._before.hand_over("update_before") | self._after.hand_over("update_after")

    def values(self, host: Mapping[str, Tensor]) -> list[float]:
        """What was copied, in the order in which it was added: before the update, then after it."""
        every = [*self._before.flat(host), *self._after.flat(host)]
        return torch.cat(every).tolist() if every else []

    def is_still(self, values: Sequence[float]) -> bool:
        """Whether the elements of a parameter are as they were, though their gradient is not zero."""
        return any(
            values[found : found + num] == values[left : left + num] and any(values[found + num : found + num + grads])
            for (found, num, grads), left in zip(self._found, self._left, strict=False)
        )

    def _add(self, to: Gathered, place: Place, states: Sequence[tuple[str, Any]], grad: Tensor | None) -> int:
        """Add the views of ``place``; which list of roles they have."""
        named: list[tuple[str, Any]] = [("param", place.param), *([] if grad is None else [("grad", grad)])]
        roles: list[tuple[str, str, int]] = []
        for name, tensor in [*named, *states]:
            if not isinstance(tensor, Tensor):
                continue
            view = tensor.reshape(1) if name in _NUMBERS and tensor.numel() == 1 else place.of(tensor)
            if view is not None:
                to.add(view)
                roles.append((name, str(view.dtype).removeprefix("torch."), view.shape[0]))
        return self._roles.setdefault(tuple(roles), len(self._roles))

    def _add_copy(self, copy: Copy, start: int) -> list[Any]:
        """Name, number of elements, dtype of the working parameter, and whether the copy is certainly its own."""
        num = min(LENGTH, copy.working.numel() - start)
        for tensor in (copy.working, copy.master):
            self._before.add(tensor.detach()[start : start + num])
        return [copy.name, num, str(copy.working.dtype).removeprefix("torch."), copy.certain]

    def _add_aside(self, place: Place) -> list[Any]:
        """Name, number of elements, how often it was written to, and whether it is to train."""
        own = _memory(place.param).detach()
        view = place.of(own)
        self._before.add(own.new_zeros(0) if view is None else view)
        return [place.name, 0 if view is None else place.num, place.param._version, place.param.requires_grad]

    def _states(self, place: Place) -> list[tuple[str, Any]]:
        if self._law in BOUNDED.values():
            return [("param_norm", place.param.detach().float().norm())] if _is_whole(place.param) else []
        state = self._optimizer.state.get(place.param) if self._law else None
        return list(state.items()) if isinstance(state, dict) else []

    def _settings(self, group: int) -> dict[str, Any]:
        held = self._optimizer.param_groups[group]
        return redacted({key: plain_value(held[key]) for key in held if key not in ("params", "param_names")})

    def _extra(self) -> Iterator[tuple[str, Any]]:
        """What else goes into the update: the scaler's part of a fused one, and settings that are on a device."""
        for name in ("grad_scale", "found_inf"):
            yield name, getattr(self._optimizer, name, None)
        for group in self.facts["groups"]:
            held = self._optimizer.param_groups[group]
            for name, value in held.items():
                if isinstance(value, Tensor) and value.device.type != "cpu":
                    yield f"{group}.{name}", value


def _plain_numbers(states: Sequence[tuple[str, Any]], when: str) -> dict[str, float]:
    """Those that are plain numbers (``step`` in older checkpoints)."""
    return {f"{when}_{name}": float(value) for name, value in states if isinstance(value, (int, float))}


def _add_number(to: Gathered, value: Any) -> bool:
    """Add a tensor of one number, if it is one."""
    is_one = isinstance(value, Tensor) and value.numel() == 1
    if is_one:
        to.add(_memory(value).reshape(1))
    return is_one


def _outside(optimizer: torch.optim.Optimizer, layout: Layout) -> dict[str, Any]:
    """How many of the optimizer's parameters are the model's and train, and the names of those of the model that have a
    gradient and that it does not hold; where it holds none that trains, also of those that are frozen and that it does.
    """
    held = _held(optimizer)
    num_held = sum(id(param) in held for param in layout.params)
    outside = [name for name, param in _not_held(held, layout) if param.requires_grad and param.grad is not None]
    found = {"num_held": num_held, "outside": outside[:MAX_OUTSIDE], "num_outside": len(outside)}
    if num_held:
        return found
    frozen = [name for name, param in layout.frozen if id(param) in held and not param.requires_grad]
    return found | {"held_frozen": frozen[:MAX_OUTSIDE]}


def _held(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    return frozenset(id(param) for group in optimizer.param_groups for param in group["params"])


def _not_held(held: Collection[int], layout: Layout) -> Iterator[tuple[str, Tensor]]:
    """Of the model, also those that were frozen when watching began."""
    for name, param in (*zip(layout.names, layout.params, strict=True), *layout.frozen):
        if id(param) not in held and param is not layout.absent:
            yield name, param


def _aside(optimizer: torch.optim.Optimizer, layout: Layout) -> list[Place]:
    """Places in parameters that the optimizer does not hold, the same ones in each sample."""
    found: list[Place] = []
    every = list(_not_held(_held(optimizer), layout))
    for trains in (False, True):
        some = [each for each in every if each[1].requires_grad is trains]
        for name, param in random.Random(0).sample(some, min(NUM_ASIDE, len(some))):
            own = _memory(param)
            if _is_plain(own) and own.numel() and not _is_shared(own):
                found.append(_place(param, name, -1, -1, own, random.Random(name)))
    return found
