"""Find what a job holds beside a model that is like its weights: averages, target networks, references, snapshots.

Modules that nothing trains, lists and mappings of tensors with the shapes of the model's parameters: sought once among
all objects that the garbage collector tracks, as nothing else knows of them.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from trueline.capture.model.contents import attributes
from trueline.capture.model.layout import clean_name, local, unwrap
from trueline.capture.model.live_objects import instances_of
from trueline.tensor.memory import is_readable

TensorGetter = Callable[[], Any]
"""Returns the tensor that is held under a name now."""

MAX_COPIES = 4
"""Copies of the model that are looked at without being declared."""

MAX_PARTS = 256
"""Outermost modules of the model of which copies are sought; a whole model is the first of them."""

_HELD_BY_US = 2
"""References to a container that only its ``_Container`` has: its own, and the argument of ``getrefcount``."""

Signature = tuple[type[nn.Module], tuple[tuple[str, torch.Size | None], ...]]
"""Of a module: its class, and names and shapes of its parameters."""


@dataclass(frozen=True, eq=False)
class AveragedPair:
    """An average and what it follows, of one name."""

    name: str
    average: TensorGetter
    model: TensorGetter
    is_buffer: bool


@dataclass(frozen=True, eq=False)
class WeightCopy:
    """Tensors that are like parameters of the model, as ``pairs``. ``name`` is what holds them, as far as that is
    known. ``is_torchs``: an ``AveragedModel`` has them. ``number`` tells it from others.
    """

    name: str
    pairs: Sequence[AveragedPair]
    is_torchs: bool = False
    container: _Container | None = None
    number: int = 0

    @property
    def is_alive(self) -> bool:
        """False once the job has let go of it; a container is then let go of here, too."""
        if self.container is not None:
            self.container.follow()
        return bool(self.pairs) and self.pairs[0].average() is not None


class _Container:
    """A list or mapping of tensors, as long as anybody else has it. It has no weak references, and its owner may put
    another in its place at each update: ``owner`` and ``key`` lead to that.
    """

    def __init__(self, values: Any) -> None:
        self.values = values
        self._size = _num(values)
        self._owner: weakref.ref[Any] | None = None
        self._key = ""

    def owned(self, owner: Any, key: str) -> None:
        """Follow the attribute ``key`` of ``owner`` from now on."""
        try:
            self._owner, self._key = weakref.ref(owner), key
        except TypeError:  # has no weak references
            self._owner = None

    def follow(self) -> None:
        """Take what the owner has now, and let go of what nobody has."""
        owner = None if self._owner is None else self._owner()
        now = None if owner is None else attributes(owner).get(self._key)
        if type(now) is type(self.values) and now is not self.values and _num(now) == self._size:
            self.values = now
        elif self.values is not None and sys.getrefcount(self.values) <= _HELD_BY_US:
            self.values = None

    def tensor(self, key: Any) -> Any:
        """The tensor at ``key``; None without one."""
        values = self.values
        if values is None:
            return None
        if issubclass(type(values), dict):
            return dict.get(values, key)
        return list.__getitem__(values, key) if key < list.__len__(values) else None


def _num(values: Any) -> int:
    """How many a list or dict holds, without code of a subclass of the user's, which may load them."""
    return dict.__len__(values) if issubclass(type(values), dict) else list.__len__(values)


def weight_copies(model: nn.Module, declared: Sequence[Any] = ()) -> list[WeightCopy]:
    """Up to ``MAX_COPIES``, whole modules first, of what nothing trains and is none of the ``declared`` averages."""
    inner = unwrap(model)
    # One look at the heap for all of them, and no code of Python for each: there may be a million.
    objects = instances_of(nn.Module, Optimizer, list, dict)
    kinds = list(map(type, objects))
    modules = [x for x in _of_kind(nn.Module, objects, kinds) if isinstance(attributes(x).get("_modules"), dict)]
    trained_ids = {id(param) for param in inner.parameters() if param.requires_grad}
    optimizers = _of_kind(Optimizer, objects, kinds)
    groups = (group for optimizer in optimizers for group in attributes(optimizer).get("param_groups", ()))
    least = max((len(trained_ids) + 1) // 2, 1)
    trained_ids |= {id(param) for group in groups for param in group["params"] if param.requires_grad}
    left_out_ids = {id(part) for average in declared if isinstance(average, nn.Module) for part in average.modules()}
    left_out_ids |= {id(average) for average in declared}
    like = _like_modules(inner, modules, trained_ids, left_out_ids)[:MAX_COPIES]
    left_out_ids |= {id(attributes(module).get(name)) for module in modules for name in ("_parameters", "_buffers")}
    plain = [
        values
        for kind in (list, dict)
        for values in _of_length(kind, least, _of_kind(kind, objects, kinds))
        if id(values) not in left_out_ids
    ]
    of_torch = (module for module in modules if issubclass(type(module), AveragedModel))
    torchs_ids = {id(part) for module in of_torch for part in module.modules()}
    del objects, kinds  # the names are asked of who refers to them
    copies: list[tuple[Any, WeightCopy]] = []
    for module, original in like:
        prefix = _prefix_of(inner, original)
        pairs = [replace(pair, name=clean_name(prefix + pair.name)) for pair in pairs_of(module, original)]
        is_torchs = id(module) in torchs_ids
        name = "AveragedModel" if is_torchs else type(module).__name__
        copies.append((module, WeightCopy(name, pairs, is_torchs)))
    copies += itertools.islice(_like_containers(inner, plain, trained_ids), MAX_COPIES - len(copies))
    del plain
    return [replace(copy, number=number) for number, copy in enumerate(_named(copies))]


def _of_kind(kind: type[Any], objects: Sequence[Any], kinds: Sequence[type[Any]]) -> list[Any]:
    """Those of ``objects``, whose classes are ``kinds``, that are of a subclass of ``kind``."""
    classes = {subclass for subclass in set(kinds) if issubclass(subclass, kind)}
    return list(itertools.compress(objects, map(classes.__contains__, kinds)))


def _of_length(kind: type[Any], least: int, values: Sequence[Any]) -> list[Any]:
    """Those that hold ``least`` or more, without code of a subclass of the user's."""
    return list(itertools.compress(values, map(least.__le__, map(kind.__len__, values))))


def _like_modules(
    inner: nn.Module, modules: Iterable[nn.Module], trained_ids: set[int], left_out_ids: set[int]
) -> list[tuple[nn.Module, nn.Module]]:
    """Outermost modules that nothing trains with the part of the model that each is like, the only one."""
    parts = [
        part
        for part in itertools.islice(inner.modules(), MAX_PARTS)
        # a layer of torch by itself is like too many of others
        if part is inner or any(True for _ in part.children())
    ]
    kinds = {type(part) for part in parts}
    inner_ids = {id(part) for part in inner.modules()}
    is_whole = all(param.requires_grad for param in inner.parameters())
    candidates = [
        module
        for module in modules
        if type(module) in kinds and id(module) not in left_out_ids and not (is_whole and id(module) in inner_ids)
    ]
    if not candidates:
        return []
    originals: defaultdict[Signature, list[nn.Module]] = defaultdict(list)
    for part in parts:
        if any(param.requires_grad for param in part.parameters()):
            originals[_signature(part)].append(part)
    pairs: list[tuple[nn.Module, nn.Module]] = []
    for module in candidates:
        params = list(module.parameters())
        if not params or any(id(param) in trained_ids or param.grad is not None for param in params):
            continue
        like = originals.get(_signature(module), [])
        if len(like) == 1 and like[0] is not module:
            pairs.append((module, like[0]))
    within_ids = {id(part) for module, _ in pairs for part in itertools.islice(module.modules(), 1, None)}
    outermost = [pair for pair in pairs if id(pair[0]) not in within_ids]
    return sorted(outermost, key=lambda pair: pair[1] is not inner)


def _signature(module: nn.Module) -> Signature:
    return type(module), tuple((clean_name(name), _shape(param)) for name, param in module.named_parameters())


def _shape(x: Tensor) -> torch.Size | None:
    """None of what has no shape: the parameters of lazy modules before their first call, nested tensors."""
    try:
        return x.shape
    except RuntimeError:
        return None


def _prefix_of(inner: nn.Module, part: nn.Module) -> str:
    return next((f"{name}." if name else "" for name, module in inner.named_modules() if module is part), "")


def _like_containers(
    inner: nn.Module, containers: Iterable[Any], trained_ids: set[int]
) -> Iterator[tuple[Any, WeightCopy]]:
    followed = {name: get for name, (get, is_buffer) in tensors_of(inner).items() if not is_buffer}
    params = {name: get() for name, get in followed.items()}
    trained = [name for name, param in params.items() if param.requires_grad]
    if len(trained) < 2:
        return
    orders = [trained] if len(trained) == len(params) else [trained, list(params)]
    shapes_by_size = {len(order): (order, [_shape(params[name]) for name in order]) for order in orders}
    for values in containers:
        is_dict = issubclass(type(values), dict)
        first = next(iter(dict.values(values) if is_dict else list.__iter__(values)), None)
        if not issubclass(type(first), Tensor):
            continue
        keys = _keys_by_name(values, params, trained) if is_dict else {}
        if not keys and (size := _num(values)) in shapes_by_size:
            order, shapes = shapes_by_size[size]
            tensors = list(dict.values(values) if is_dict else list.__iter__(values))
            if all(
                issubclass(type(x), Tensor) and _shape(x) == shape for x, shape in zip(tensors, shapes, strict=True)
            ):
                keys = dict(zip(order, dict.keys(values) if is_dict else itertools.count(), strict=False))
        container = _Container(values)
        tensors_by_name = {name: container.tensor(key) for name, key in keys.items()}
        if not keys or any(_is_trained(x, params[name], trained_ids) for name, x in tensors_by_name.items()):
            continue
        pairs = [
            AveragedPair(name, functools.partial(container.tensor, key), followed[name], False)
            for name, key in keys.items()
        ]
        yield values, WeightCopy("", pairs, container=container)


def _keys_by_name(values: dict[Any, Any], params: Mapping[str, Tensor], trained: Sequence[str]) -> dict[str, Any]:
    """The keys under which tensors of the shapes of parameters are, by their names; none of fewer than half of them."""
    keys = {clean_name(key): key for key in dict.keys(values) if isinstance(key, str)}
    keys = {
        name: keys[name]
        for name, param in params.items()
        if name in keys and issubclass(type(x := dict.get(values, keys[name])), Tensor) and _shape(x) == _shape(param)
    }
    return keys if 2 * sum(name in keys for name in trained) >= len(trained) else {}


def _is_trained(x: Tensor, param: Tensor, trained_ids: set[int]) -> bool:
    """True for what an optimizer holds, what has or had a gradient, and what is the memory of its parameter."""
    if id(x) in trained_ids or x is param or not x.is_leaf or not x.is_floating_point():
        return True
    if x.requires_grad and x.grad is not None:
        return True
    memory, weights = local(x), local(param)
    return not (is_readable(memory) and is_readable(weights)) or memory.data_ptr() == weights.data_ptr()


def _named(copies: Sequence[tuple[Any, WeightCopy]]) -> list[WeightCopy]:
    """The same with the class and the attribute that holds each, ``Shadow.shadow``, or the name that a module of Python
    has for it, where that is known.
    """
    by_id = {id(held): copy for held, copy in copies if not copy.is_torchs}
    if not by_id:
        return [copy for _, copy in copies]
    names: dict[int, str] = {}
    owners = gc.get_referrers(*(held for held, copy in copies if not copy.is_torchs))
    dicts = [owner for owner in owners if type(owner) is dict]
    # an object whose attributes are a dict of its own, and a module whose parts are in one of these
    owners += gc.get_referrers(*dicts) if dicts else []
    dict_ids = {id(owner) for owner in dicts}
    parts = [owner for owner in owners if type(owner) is dict and id(owner) not in dict_ids]
    owners += gc.get_referrers(*parts) if parts else []
    for owner in owners:
        is_dict = type(owner) is dict
        if (is_dict and "__name__" not in owner) or type(owner).__module__.partition(".")[0] == "trueline":
            continue
        entries = owner if is_dict else attributes(owner)
        parts = entries.get("_modules")
        for key, value in [*list(entries.items()), *(list(parts.items()) if isinstance(parts, dict) else ())]:
            copy = by_id.get(id(value))
            if copy is None or not isinstance(key, str):
                continue
            names.setdefault(id(value), key if is_dict else f"{type(owner).__name__}.{key}")
            if copy.container is not None and not is_dict:
                copy.container.owned(owner, key)
    return [replace(copy, name=names.get(id(held), copy.name)) for held, copy in copies]


def pairs_of(average: Any, model: nn.Module) -> Iterator[AveragedPair]:
    """The tensors of an average, a module, a mapping or a list, with those of the model that they follow."""
    followed = tensors_of(model)
    if isinstance(average, nn.Module):
        for name, (get_tensor, is_buffer) in tensors_of(average).items():
            if name in followed:
                yield AveragedPair(name, get_tensor, followed[name][0], is_buffer)
    elif isinstance(average, Mapping):
        for key in average:
            name = clean_name(str(key))
            if name in followed:
                yield AveragedPair(name, functools.partial(average.get, key), *followed[name])
    else:
        params = ((name, get_tensor) for name, (get_tensor, is_buffer) in followed.items() if not is_buffer)
        for index, (name, get_tensor) in enumerate(params):
            if index < len(average):
                yield AveragedPair(name, functools.partial(average.__getitem__, index), get_tensor, False)


def tensors_of(model: nn.Module) -> dict[str, tuple[TensorGetter, bool]]:
    """Clean FQN of each parameter once, in their order, then of each buffer; what holds it, and whether it is a
    buffer.
    """
    getters: dict[str, tuple[TensorGetter, bool]] = {}
    for is_buffer in (False, True):
        seen_ids = set[int]()
        for prefix, module in unwrap(model).named_modules():
            table = module._buffers if is_buffer else module._parameters
            for name, tensor in table.items():
                if tensor is not None and id(tensor) not in seen_ids:
                    seen_ids.add(id(tensor))
                    getters[clean_name(f"{prefix}.{name}" if prefix else name)] = (
                        functools.partial(_get_tensor, weakref.ref(module), name, is_buffer),
                        is_buffer,
                    )
    return getters


def owner_of(get_tensor: TensorGetter) -> nn.Module | None:
    """The module that holds the tensor; None where no module does, or it is gone."""
    is_modules = isinstance(get_tensor, functools.partial) and get_tensor.func is _get_tensor
    return get_tensor.args[0]() if is_modules else None


def _get_tensor(ref: weakref.ref[nn.Module], name: str, is_buffer: bool) -> Tensor | None:
    """The tensor of this name; None once the module is gone, which the user may drop meanwhile."""
    module = ref()
    return None if module is None else (module._buffers if is_buffer else module._parameters).get(name)
