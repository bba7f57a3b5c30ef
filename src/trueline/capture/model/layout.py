"""Which parameters are watched, in which groups, and what sketches them."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import itertools
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from trueline.capture.model.mesh import Mesh, is_dtensor, is_piece, workers_in
from trueline.schema.errors import CaptureError
from trueline.schema.files.run_manifest import GroupSpec
from trueline.tensor.sketch import Sketcher, sketch_length

_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


@dataclass(frozen=True)
class Apart:
    """Names of parameters that not all ranks hold alike when watching begins: those that some lack, or hold in another
    ``shape``, and those that some have ``frozen``.
    """

    shape: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()


ALIKE = Apart()


@dataclass(frozen=True)
class Layout:
    """Names, groups and sketcher of the P watched parameters of one model, the same on every rank. ``group_of`` says
    which group each is in, and ``group_index`` the same as an array.

    ``frozen`` are the others, whose gradients there are none of but which replicas must share. ``shapes`` are of whole
    parameters, or of a rank's part where that is reduced by itself (tensor parallelism); ``mesh`` says in how many
    equal pieces each is reduced. ``whole`` are the positions of parameters that ranks hold whole, unlike the sharded
    others, and reduce by other means: they have norms and digests, and no sketch. ``digest`` is one of
    names, shapes and groups: ranks add up what they measured only where theirs are equal. A parameter that this rank
    does not hold any more is an empty one, ``gone``.
    """

    names: tuple[str, ...]
    params: tuple[nn.Parameter, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[GroupSpec, ...]
    group_of: tuple[int, ...]
    k: int
    mesh: Mesh
    sketcher: Sketcher
    digest: int
    device: torch.device
    group_index: NDArray[np.int64]
    frozen: tuple[tuple[str, nn.Parameter], ...] = ()
    whole: tuple[int, ...] = ()
    gone: nn.Parameter | None = None
    index_of: dict[int, int] = field(default_factory=dict[int, int])
    tables: tuple[dict[str, Any], ...] = ()
    held: tuple[Any, ...] = ()
    lengths: tuple[int, ...] = ()
    facts: tuple[Any, ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Elements of each of ``shapes`` as it is reduced, padding included."""
        return tuple(_padded(shape, self.mesh) for shape in self.shapes)

    @property
    def numels(self) -> tuple[int, ...]:
        """Elements of each of ``shapes``."""
        return tuple(math.prod(shape) for shape in self.shapes)

    def fits(self) -> bool:
        """Whether the model still has exactly these parameters, trained and frozen as they were (people replace them
        after wrapping). ``tables`` are the modules' own of their children and parameters, ``held`` what is in them one
        after the other: looking there, in no loop of Python's, takes a hundredth of the time of walking through
        ``model.parameters()``, and is done at every step.
        """
        if tuple(map(len, self.tables)) != self.lengths:
            return False
        return all(map(operator.is_, _inside(self.tables), self.held)) and self._facts() == self.facts

    def held_by(self, model: nn.Module) -> Layout:
        """The same Layout over the parameters that ``model`` holds now under these names."""
        held = dict(named_parameters(model))
        gone = nn.Parameter(torch.empty(0, device=self.device), requires_grad=False)
        params = tuple(
            param if param is not None and _shape(param, self.mesh) == shape else gone
            for param, shape in zip(map(held.get, self.names), self.shapes, strict=True)
        )
        made = replace(
            self,
            params=params,
            frozen=tuple((name, held.get(name, gone)) for name, _ in self.frozen),
            gone=gone,
            index_of={id(param): index for index, param in enumerate(params) if param is not gone},
        )
        tables = tuple(table for module in model.modules() for table in (module._modules, module._parameters))
        held_by = {"tables": tables, "held": tuple(_inside(tables)), "lengths": tuple(map(len, tables))}
        return replace(made, facts=made._facts(), **held_by)

    def _facts(self) -> tuple[Any, ...]:
        frozen = map(operator.itemgetter(1), self.frozen)
        return tuple(map(operator.attrgetter("requires_grad", "dtype"), itertools.chain(self.params, frozen)))


def _inside(tables: Sequence[dict[str, Any]]) -> Iterator[Any]:
    """What is in the tables, one after the other."""
    return itertools.chain.from_iterable(map(operator.methodcaller("values"), tables))


@functools.lru_cache(maxsize=2**16)  # a recorded step asks for the name of every module and parameter
def clean_name(name: str) -> str:
    """The FQN without the components that wrappers (DDP, torch.compile, checkpoint) put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS) or name


def part_of(module: nn.Module, name: str) -> nn.Module | None:
    """The part of ``module`` that has this ``name``; unlike ``getattr`` it asks no ``__getattr__`` or property of the
    user's, which may count, print or raise.
    """
    parts = module.__dict__.get("_modules")
    return parts[name] if parts is not None and name in parts else None


def compiled_inside(module: nn.Module) -> nn.Module | None:
    """The module that ``module`` is the compiled form of, None for any other."""
    return part_of(module, "_orig_mod")


def is_fsdp2(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on ``module``, which then has a class of its own."""
    return hasattr(type(module), "_get_fsdp_state")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP, DeepSpeed and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif is_engine(model):
            model = model.module  # type: ignore[assignment]
        elif (compiled := compiled_inside(model)) is not None:
            model = compiled
        else:
            return model


def deepspeed_engine() -> Any:
    """The class of DeepSpeed's engines, None while DeepSpeed is not imported."""
    return getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)


def is_engine(model: nn.Module) -> bool:
    """Whether ``model`` is an engine of DeepSpeed, with the user's own module inside."""
    engine = deepspeed_engine()
    return engine is not None and isinstance(model, engine)


def holds_padding(model: nn.Module) -> bool:
    """Whether this rank's part of a parameter that ZeRO 3 has cut is longer than what is left of the parameter: the
    rest is memory that nothing has filled.
    """
    return any(
        (dist.get_rank(param.ds_process_group) + 1) * param.ds_tensor.numel() > param.ds_numel  # type: ignore[attr-defined]
        for param in model.parameters()
        if getattr(param, "ds_tensor", None) is not None
    )


def fsdp2_groups(model: nn.Module) -> Iterator[Any]:
    """FSDP2's own groups of the parameters of ``model``, which several modules may share; none where a version of torch
    keeps them elsewhere.
    """
    states = (module._get_fsdp_state() for module in model.modules() if is_fsdp2(module))
    for state in dict.fromkeys(states):
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            single = getattr(state, "_fsdp_param_group", None)
            groups = [single] if single is not None else []
        yield from (group for group in groups if hasattr(group, "_reduce_scatter_comm"))


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """(clean FQN, parameter) of every parameter, and of one that FSDP2 has gathered just now (before or after a forward
    pass) its shard: the gathered one is empty again before the optimizer's step.
    """
    shards = {
        id(getattr(each, "_unsharded_param", None)): each.sharded_param
        for group in fsdp2_groups(model)
        for each in group.fsdp_params
    }
    named = unwrap(model).named_parameters()
    if not shards:
        return [(clean_name(name), param) for name, param in named]
    return [(clean_name(name), shards.get(id(param), param)) for name, param in named]


def experts(model: nn.Module) -> frozenset[str]:
    """Clean FQNs of the parameters that DeepSpeed and Megatron mark as experts, which ranks do not share."""
    return frozenset(name for name, param in named_parameters(model) if not getattr(param, "allreduce", True))


def watched_parameters(model: nn.Module, *, patterns: tuple[str, ...]) -> list[tuple[str, nn.Parameter]]:
    """(clean FQN, parameter) of the trainable parameters of ``model`` whose names match one of the globs.

    Raises ``CaptureError`` for a model without trainable parameters and for globs that match none.
    """
    every = [
        (name, param)
        for name, param in named_parameters(model)
        if param.requires_grad and (param.is_floating_point() or param.is_complex())
    ]
    if not every:
        raise CaptureError(
            f"{type(unwrap(model)).__name__} has no parameter that requires a gradient, so there is nothing to watch. "
            "Pass the model that the optimizer trains."
        )
    chosen = [(name, param) for name, param in every if any(fnmatch.fnmatch(name, glob) for glob in patterns)]
    if not chosen:
        raise CaptureError(
            f"names={list(patterns)} matches none of the {len(every)} parameters; "
            f"the first are {', '.join(name for name, _ in every[:5])}."
        )
    return chosen


def make_layout(
    model: nn.Module,
    *,
    patterns: tuple[str, ...],
    max_groups: int,
    mesh: Mesh | None = None,
    apart: Apart = ALIKE,
) -> Layout:
    """The Layout of ``watched_parameters`` but for those ``apart``, and its errors; also where none is left. ``mesh``
    is that of the model (None: of replicas).
    """
    mesh = workers_in() if mesh is None else mesh
    shards = mesh.shards
    left_out = apart.shape | apart.frozen
    chosen = [(name, param) for name, param in watched_parameters(model, patterns=patterns) if name not in left_out]
    if not chosen:
        raise CaptureError("no parameter is trained by all ranks, so there are no gradients to compare.")
    names = tuple(name for name, _ in chosen)
    params = tuple(param for _, param in chosen)
    shapes = tuple(_shape(param, mesh) for param in params)
    groups, group_of = _group(names, [math.prod(shape) for shape in shapes], max_groups=max_groups)
    k = sketch_length(len(groups))
    device = local(params[0]).device
    frozen = tuple(
        (name, param)
        for name, param in named_parameters(model)
        if name in apart.frozen or (not param.requires_grad and name not in apart.shape)
    )
    said = repr((names, shapes, group_of, k, shards, [name for name, _ in frozen]))
    layout = Layout(
        names=names,
        params=params,
        shapes=shapes,
        groups=groups,
        group_of=group_of,
        k=k,
        mesh=mesh,
        sketcher=Sketcher(
            names,
            [_padded(shape, mesh) // shards for shape in shapes],
            group_of,
            k=k,
            shards=shards,
            device=device,
        ),
        digest=int(hashlib.sha256(said.encode()).hexdigest()[:13], 16),  # 52 bits: a float64 holds it whole
        device=device,
        group_index=np.array(group_of, dtype=np.int64),
        frozen=frozen,
        whole=tuple(index for index, param in enumerate(params) if shards > 1 and not is_piece(param)),
    )
    return layout.held_by(model)


def copies(layout: Layout) -> dict[tuple[int, ...], list[str]]:
    """By ranks among which this one's part of the model is cut by tensor parallelism, the names of the parameters that
    these hold in copies instead.
    """
    named = [*zip(layout.names, layout.params, strict=True), *layout.frozen]
    meshes = {name: layout.mesh.of(param) for name, param in named if is_dtensor(param) or hasattr(param, "_st_info")}
    cuts = {
        mesh.group(axis)
        for mesh in meshes.values()
        for axis, role in zip(mesh.names, mesh.roles, strict=True)
        if role == "part"
    }
    found: dict[tuple[int, ...], list[str]] = {}
    for ranks in sorted(each for each in cuts if len(each) > 1):
        for name, _ in named:
            mesh = meshes.get(name)
            beyond = mesh is None or set(ranks).isdisjoint(set(mesh.members) - {mesh.rank})
            if beyond or (mesh is not None and set(ranks) <= set(mesh.replicas)):
                found.setdefault(ranks, []).append(name)
    return found


def local(x: Tensor) -> Tensor:
    """The tensor's own memory on this rank: the shard of a DTensor or of ZeRO 3, the tensor itself otherwise."""
    if type(x) is Tensor:  # as nearly every gradient: only parameters and DTensors are more
        return x
    if (part := getattr(x, "ds_tensor", None)) is not None:
        return part
    to_local = getattr(x, "to_local", None)
    return to_local() if to_local is not None else x


def in_shards(gradient: Tensor, shards: int) -> Tensor:
    """[W, C] of a whole gradient that is cut flat, with zeros behind."""
    flat = gradient.reshape(-1)
    missing = -flat.numel() % shards
    return (nn.functional.pad(flat, (0, missing)) if missing else flat).view(shards, -1)


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(clean FQN, buffer) for every registered buffer with elements."""
    for name, buffer in unwrap(model).named_buffers():
        if buffer.numel():
            yield clean_name(name), buffer


def _block(name: str) -> str:
    """The block a parameter belongs to: the path up to its first layer index, else its module."""
    parts = name.split(".")
    for position, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return ".".join(parts[:-1]) or name


def _shape(param: Tensor, mesh: Mesh) -> tuple[int, ...]:
    """The shape of what is reduced: where that is done in shards, of the whole parameter, or of this rank's part of it,
    as ``torch.chunk`` cuts.
    """
    if mesh.shards == 1 and not mesh.flat:
        return tuple(local(param).shape)
    whole = getattr(param, "ds_shape", getattr(param, "_trueline_shape", None))
    if whole is not None:
        return tuple(whole)
    shape, own = list(param.shape), mesh.of(param)
    for axis, (role, at) in enumerate(zip(own.roles, own.coordinates(), strict=True)):
        if role == "part":
            dim = param.placements[axis].dim  # type: ignore[attr-defined]
            piece = -(-shape[dim] // own.ranks.shape[axis])
            shape[dim] = min(max(shape[dim] - piece * at, 0), piece)
    return tuple(shape)


def _padded(shape: Sequence[int], mesh: Mesh) -> int:
    """Elements of a tensor once dimension 0 is padded to a multiple of the shards, as FSDP2 reduces it, or, where
    shards are cut flat, all of it (FSDP1, ZeRO 3).
    """
    shards = mesh.shards
    if shards == 1:
        return math.prod(shape)
    if mesh.flat:
        return -(-math.prod(shape) // shards) * shards
    if not shape:
        return shards
    return -(-shape[0] // shards) * shards * math.prod(shape[1:])


def _group(
    names: tuple[str, ...], numels: list[int], *, max_groups: int
) -> tuple[tuple[GroupSpec, ...], tuple[int, ...]]:
    blocks = list(dict.fromkeys(_block(name) for name in names))
    per_group = -(-len(blocks) // max_groups)
    merged = [blocks[start : start + per_group] for start in range(0, len(blocks), per_group)]
    group_of_block = {block: index for index, group in enumerate(merged) for block in group}
    group_of = tuple(group_of_block[_block(name)] for name in names)
    specs = tuple(
        GroupSpec(
            name=group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}",
            params=[name for name, of in zip(names, group_of, strict=True) if of == index],
            numel=sum(numel for numel, of in zip(numels, group_of, strict=True) if of == index),
        )
        for index, group in enumerate(merged)
    )
    return specs, group_of
