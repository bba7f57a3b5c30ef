"""The mesh of ranks that a model is laid out on: who is a replica of whom, who holds which shard, and who reduces
gradients with whom.

An adapter makes it once a model, from what its framework says; everything else asks it. Arithmetic on ranks only.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from trueline.capture.model.live_objects import instances_of
from trueline.capture.model.world import is_initialised, own_rank, ranks_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Role = Literal["replica", "shard", "part"]
"""Relation of the ranks along one axis of a mesh. Replicas hold equal parameters, shards hold pieces of them between
steps: both compute gradients of whole parameters, which are then averaged (data and context parallelism, FSDP). Parts
hold one model together, and have the gradients of their own part only (tensor, pipeline and expert parallelism).
"""

ALONG_SEQUENCES = frozenset(
    ("cp", "context", "context_parallel", "seq", "sequence", "sequence_parallel", "sp", "ring", "ulysses")
)
"""Names of an axis along which ranks hold pieces of one sequence: cp in torchtitan and Accelerate, which calls
DeepSpeed's sp, sequence_parallel in DeepSpeed, CONTEXT_PARALLEL_GROUP in Megatron-core.
"""


@dataclass(frozen=True, eq=False)
class Mesh:
    """Global ``ranks`` by coordinates (int64, one dim an axis), and the name and role of each axis, as ``rank`` needs
    it. ``members`` are the ranks that write one Run together: those of the mesh, unless a process group was passed.
    ``other_meshes`` are meshes that some parameters are on instead, such as those of experts. ``flat`` says that shards
    are pieces of a parameter's elements in order, and not of its first dimension.
    """

    ranks: NDArray[np.int64]
    names: tuple[str, ...]
    roles: tuple[Role, ...]
    rank: int
    members: tuple[int, ...]
    other_meshes: tuple[Mesh, ...] = ()
    flat: bool = False

    def coordinates(self, rank: int | None = None) -> tuple[int, ...]:
        """Index of ``rank`` (this one, if None) on each axis. Raises ValueError for a rank that is not on the mesh."""
        rank = self.rank if rank is None else rank
        positions = np.argwhere(self.ranks == rank)
        if len(positions) != 1:
            raise ValueError(f"Rank {rank} is not on the mesh of the ranks {self.ranks.ravel().tolist()}.")
        return tuple(positions[0].tolist())

    def group(self, *names: str, rank: int | None = None) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` (this one, if None) along the axes of these names only, itself included,
        in the order of the mesh.
        """
        coordinates = self.coordinates(rank)
        index = tuple(
            slice(None) if name in names else coordinate
            for name, coordinate in zip(self.names, coordinates, strict=True)
        )
        return tuple(self.ranks[index].ravel().tolist())

    def along(self, *roles: Role) -> tuple[int, ...]:
        """``group`` of all axes of these roles."""
        names = [name for name, role in zip(self.names, self.roles, strict=True) if role in roles]
        return self.group(*names)

    @functools.cached_property
    def replicas(self) -> tuple[int, ...]:
        """The ranks that hold, bit for bit, what this one holds."""
        return self.along("replica")

    @functools.cached_property
    def workers(self) -> tuple[int, ...]:
        """The ranks that reduce gradients with this one."""
        return self.along("replica", "shard")

    @functools.cached_property
    def shards(self) -> int:
        """Number of pieces in which a gradient is reduced; 1 where every worker receives all of it."""
        return len(self.along("shard"))

    @functools.cached_property
    def shard(self) -> int:
        """Index of this rank's piece among the ``shards``."""
        return self.along("shard").index(self.rank)

    @functools.cached_property
    def compares(self) -> bool:
        """True if the members are workers, which are compared, and do not hold one model together."""
        return len(self.along("part")) == 1

    @functools.cached_property
    def replica_key(self) -> str:
        """A text that is equal on two members exactly where they hold the same."""
        if not self.compares:
            return f"rank {self.rank}"
        return "all" if self.shards == 1 else f"shard {self.shard} of {self.shards}"

    def mesh_of(self, param: Tensor) -> Mesh:
        """The mesh that ``param`` is on, with the roles that its own placements give the axes. (For DDP over tensor
        parallelism torch leaves what they were beside the local tensor, ``torch.distributed.tensor.parallel.ddp``.)
        """
        spec: Any = getattr(param, "_st_info", param)
        device_mesh = getattr(spec, "device_mesh", None)
        if device_mesh is None:
            return self if is_piece(param) else replace(self, roles=tuple(map(_whole, self.roles)))
        mesh = on_device_mesh(device_mesh, rank=self.rank)
        cuts = [not placement.is_replicate() for placement in spec.placements]  # FSDP cuts what is cut in strides
        roles = [self._role(mesh.group(name)) if cut else "replica" for name, cut in zip(mesh.names, cuts, strict=True)]
        return replace(mesh, roles=tuple(roles))

    def _role(self, group: tuple[int, ...]) -> Role:
        """Role of ranks that hold other pieces: shards where the framework has said that it reduces in shards."""
        for mesh in (self, *self.other_meshes):
            axes = zip(mesh.names, mesh.roles, strict=True)
            if any(role == "shard" and mesh.group(name) == group for name, role in axes):
                return "shard"
        return "part"

    def text(self) -> str:
        """The axes, such as ``dp = 2 x tp = 4``."""
        return " x ".join(f"{name} = {size}" for name, size in zip(self.names, self.ranks.shape, strict=True))


def workers_in(process_group: dist.ProcessGroup | None = None) -> Mesh:
    """Replicas: all ranks of ``process_group`` (None: of the default group; this one where none is initialised)."""
    return _line(ranks_of(process_group), "replica")


def parts_in(process_group: dist.ProcessGroup | None = None) -> Mesh:
    """Ranks of ``process_group`` that hold one model together."""
    return _line(ranks_of(process_group), "part")


def on_device_mesh(device_mesh: Any, *roles: Role, rank: int | None = None) -> Mesh:
    """The Mesh of a ``torch.distributed.DeviceMesh``, with one role an axis (replicas, if none is given)."""
    ranks = device_mesh.mesh.numpy().astype(np.int64)
    names = device_mesh.mesh_dim_names or tuple(f"dim {index}" for index in range(device_mesh.ndim))
    rank = own_rank() if rank is None else rank
    roles = roles or ("replica",) * ranks.ndim
    return Mesh(ranks, tuple(names), roles, rank=rank, members=tuple(ranks.ravel().tolist()))


def piece_of_sequence() -> tuple[int, ...]:
    """Indices of the piece of its sequences that this rank holds: in each process group, or on each axis of a device
    mesh, that has one of the names ``ALONG_SEQUENCES``; () where none has.
    """
    if not is_initialised():
        return ()
    groups = {(group.group_desc, ranks_of(group)) for group in dist.distributed_c10d._world.pg_map}
    along_sequence = {(name, ranks) for name, ranks in groups if _is_along(name)} or _along_in_meshes()
    return tuple(ranks.index(own_rank()) for _, ranks in sorted(along_sequence))


def _is_along(description: str) -> bool:
    """True for a group's name along sequences, of torch (``mesh_cp``) or a framework (``CONTEXT_PARALLEL_GROUP``)."""
    return description.lower().removeprefix("mesh_").removesuffix("_group") in ALONG_SEQUENCES


def _along_in_meshes() -> set[tuple[str, tuple[int, ...]]]:
    """Name and ranks of axes that hold all ranks, for which torch takes the default group."""
    kind: type[Any] | None = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    meshes = [] if kind is None else instances_of(kind)
    return {
        (name, on_device_mesh(mesh).group(name))
        for mesh in meshes
        for name in mesh.mesh_dim_names or ()
        if name in ALONG_SEQUENCES and mesh.size(mesh.mesh_dim_names.index(name)) == dist.get_world_size()
    }


def is_dtensor(x: object) -> TypeGuard[DTensor]:
    """True if ``x`` is a DTensor. There is none before their module is imported, which this does not do."""
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return dtensor is not None and isinstance(x, dtensor)


def is_piece(param: Tensor) -> bool:
    """True if a rank may hold a piece of ``param`` only: a DTensor, what FSDP1 flattened, what ZeRO 3 partitioned. (The
    marks of the latter two are private: ``torch.distributed.fsdp._common_utils``, ``deepspeed.zero``.)
    """
    return any(hasattr(param, mark) for mark in ("to_local", "_fsdp_flattened", "ds_tensor"))


def replicas(ranks: Sequence[int]) -> Mesh:
    """Replicas: these ``ranks``."""
    return _line(tuple(ranks), "replica")


def _line(ranks: tuple[int, ...], role: Role) -> Mesh:
    return Mesh(np.array(ranks, dtype=np.int64), ("ranks",), (role,), rank=own_rank(), members=ranks)


def _whole(role: Role) -> Role:
    return "replica" if role == "shard" else role
