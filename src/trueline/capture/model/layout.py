"""The parameters that are watched, their groups, and what sketches them."""

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
class UnlikeParams:
    """Names of parameters that not all ranks hold alike when watching begins: those that some lack, or hold in another
    ``shape``, and those that some have ``frozen``.
    """

    shape: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()


NOTHING_UNLIKE = UnlikeParams()


@dataclass(frozen=True)
class Layout:
    """Names, groups and sketcher of the P watched parameters of one model, equal on every rank. ``group_of`` says
    which group each parameter is in, and ``group_index`` [P] is that as an array.

    ``frozen`` are the others, which have no gradients but which replicas must share. ``shapes`` are of whole
    parameters, or of a rank's part where that is reduced by itself (tensor parallelism); ``mesh`` says in how many
    equal pieces each is reduced. ``whole`` are the positions of parameters that ranks hold whole, unlike the sharded
    others, and reduce by other means: they have norms and digests, and no sketch. ``digest`` is of names, shapes and
    groups: ranks add up what they measured only where their digests are equal. A parameter that this rank
    does not hold any more is an empty one, ``absent``.
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
    absent: nn.Parameter | None = None
    index_of: dict[int, int] = field(default_factory=dict[int, int])
    tables: tuple[dict[str, Any], ...] = ()
    entries: tuple[Any, ...] = ()
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
        """True if the model still has exactly these parameters, trained and frozen as they were (people replace them
        after wrapping). ``tables`` are the modules' own dicts of children and parameters, ``entries`` their values in
        order: to compare these, in no loop of Python's, takes a hundredth of the time of walking through
        ``model.parameters()``, and is done at every step.
        """
        # first, as a shorter table would end the comparison of entries early
        if tuple(map(len, self.tables)) != self.lengths:
            return False
        return all(map(operator.is_, _entries_of(self.tables), self.entries)) and self._facts() == self.facts

    def rebind(self, model: nn.Module) -> Layout:
        """Returns this Layout over the parameters that ``model`` holds now under these names."""
        params_now = dict(named_parameters(model))
        absent = nn.Parameter(torch.empty(0, device=self.device), requires_grad=False)
        params = tuple(
            param if param is not None and _shape(param, self.mesh) == shape else absent
            for param, shape in zip(map(params_now.get, self.names), self.shapes, strict=True)
        )
        layout = replace(
            self,
            params=params,
            frozen=tuple((name, params_now.get(name, absent)) for name, _ in self.frozen),
            absent=absent,
            index_of={id(param): index for index, param in enumerate(params) if param is not absent},
        )
        tables = tuple(table for module in model.modules() for table in (module._modules, module._parameters))
        table_facts = {"tables": tables, "entries": tuple(_entries_of(tables)), "lengths": tuple(map(len, tables))}
        return replace(layout, facts=layout._facts(), **table_facts)

    def _facts(self) -> tuple[Any, ...]:
        frozen = map(operator.itemgetter(1), self.frozen)
        return tuple(map(operator.attrgetter("requires_grad", "dtype"), itertools.chain(self.params, frozen)))


def _entries_of(tables: Sequence[dict[str, Any]]) -> Iterator[Any]:
    """Values of the tables, one table after the other."""
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
    """True if ``fully_shard`` was called on ``module``, which then has a class of its own."""
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
    """True if ``model`` is an engine of DeepSpeed, with the user's own module inside."""
    engine = deepspeed_engine()
    return engine is not None and isinstance(model, engine)


def holds_padding(model: nn.Module) -> bool:
    """True if this rank's part of a parameter that ZeRO 3 has cut is longer than what is left of the parameter: the
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
        id(getattr(fsdp_param, "_unsharded_param", None)): fsdp_param.sharded_param
        for group in fsdp2_groups(model)
        for fsdp_param in group.fsdp_params
    }
    named_params = unwrap(model).named_parameters()
    if not shards:
        return [(clean_name(name), param) for name, param in named_params]
    return [(clean_name(name), shards.get(id(param), param)) for name, param in named_params]


def experts(model: nn.Module) -> frozenset[str]:
    """Clean FQNs of the parameters that DeepSpeed and Megatron mark as experts, which ranks do not share."""
    return frozenset(name for name, param in named_parameters(model) if not getattr(param, "allreduce", True))


def watched_parameters(model: nn.Module, *, patterns: tuple[str, ...]) -> list[tuple[str, nn.Parameter]]:
    """(clean FQN, parameter) of the trainable parameters of ``model`` whose names match one of the globs.

    Raises ``CaptureError`` for a model without trainable parameters and for globs that match none.
    """
    trainable = [
        (name, param)
        for name, param in named_parameters(model)
        if param.requires_grad and (param.is_floating_point() or param.is_complex())
    ]
    if not trainable:
        raise CaptureError(
            f"{type(unwrap(model)).__name__} has no parameter that requires a gradient, so there is nothing to watch. "
            "Pass the model that the optimizer trains."
        )
    matching = [(name, param) for name, param in trainable if any(fnmatch.fnmatch(name, glob) for glob in patterns)]
    if not matching:
        raise CaptureError(
            f"names={list(patterns)} matches none of the {len(trainable)} parameters; "
            f"the first are {', '.join(name for name, _ in trainable[:5])}."
        )
    return matching


def make_layout(
    model: nn.Module,
    *,
    patterns: tuple[str, ...],
    max_groups: int,
    mesh: Mesh | None = None,
    unlike: UnlikeParams = NOTHING_UNLIKE,
) -> Layout:
    """The Layout of ``watched_parameters`` but for those ``unlike``. ``mesh`` is that of the model (None: of replicas).

    Raises ``CaptureError`` as ``watched_parameters`` does, and where no parameter is left.
    """
    mesh = workers_in() if mesh is None else mesh
    shards = mesh.shards
    # sums over ranks need one order of equal shapes on all of them
    left_out = unlike.shape | unlike.frozen
    watched = [(name, param) for name, param in watched_parameters(model, patterns=patterns) if name not in left_out]
    if not watched:
        raise CaptureError("no parameter is trained by all ranks, so there are no gradients to compare.")
    names = tuple(name for name, _ in watched)
    params = tuple(param for _, param in watched)
    shapes = tuple(_shape(param, mesh) for param in params)
    groups, group_of = _group(names, [math.prod(shape) for shape in shapes], max_groups=max_groups)
    k = sketch_length(len(groups))
    device = local(params[0]).device
    frozen = tuple(
        (name, param)
        for name, param in named_parameters(model)
        if name in unlike.frozen or (not param.requires_grad and name not in unlike.shape)
    )
    # all that decides what a number in the summed vector stands for
    identity = repr((names, shapes, group_of, k, shards, [name for name, _ in frozen]))
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
        digest=int(hashlib.sha256(identity.encode()).hexdigest()[:13], 16),  # 52 bits: a float64 holds it whole
        device=device,
        group_index=np.array(group_of, dtype=np.int64),
        frozen=frozen,
        whole=tuple(index for index, param in enumerate(params) if shards > 1 and not is_piece(param)),
    )
    return layout.rebind(model)


def copies(layout: Layout) -> dict[tuple[int, ...], list[str]]:
    """Names of the parameters that ranks hold in copies, by the ranks among which tensor parallelism cuts this rank's
    part of the model.
    """
    named_params = [*zip(layout.names, layout.params, strict=True), *layout.frozen]
    meshes = {
        name: layout.mesh.mesh_of(param)
        for name, param in named_params
        if is_dtensor(param) or hasattr(param, "_st_info")
    }
    cuts = {
        mesh.group(axis)
        for mesh in meshes.values()
        for axis, role in zip(mesh.names, mesh.roles, strict=True)
        if role == "part"
    }
    names_by_ranks: dict[tuple[int, ...], list[str]] = {}
    for ranks in sorted(group for group in cuts if len(group) > 1):
        for name, _ in named_params:
            mesh = meshes.get(name)
            beyond = mesh is None or set(ranks).isdisjoint(set(mesh.members) - {mesh.rank})
            if beyond or (mesh is not None and set(ranks) <= set(mesh.replicas)):
                names_by_ranks.setdefault(ranks, []).append(name)
    return names_by_ranks


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
    shape, param_mesh = list(param.shape), mesh.mesh_of(param)
    for axis, (role, coordinate) in enumerate(zip(param_mesh.roles, param_mesh.coordinates(), strict=True)):
        if role == "part":
            dim = param.placements[axis].dim  # type: ignore[attr-defined]
            piece = -(-shape[dim] // param_mesh.ranks.shape[axis])
            shape[dim] = min(max(shape[dim] - piece * coordinate, 0), piece)
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
            params=[name for name, param_group in zip(names, group_of, strict=True) if param_group == index],
            numel=sum(numel for numel, param_group in zip(numels, group_of, strict=True) if param_group == index),
        )
        for index, group in enumerate(merged)
    )
    return specs, group_of
