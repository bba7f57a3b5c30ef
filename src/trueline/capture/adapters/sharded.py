"""Tensor parallelism: a plain module whose parameters are DTensors that FSDP2 did not make. And pipelines: plain
modules with other parameters on each rank.

The ranks of such a mesh, or such stages, hold one model together and compute on the same samples, on purpose: they are
not compared with each other, and what a rank has of a gradient says nothing about the others'. They share
one Run, in which their steps are recorded. Where the user passes the data-parallel ``process_group``, ranks that hold
the same shards and read other samples, these are workers as any others, whose gradients the user's code averages.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trueline.capture.adapters.base import HookingAdapter, uncompiled
from trueline.capture.adapters.fsdp1 import Fsdp1Adapter, fsdp1_adapter
from trueline.capture.adapters.manual import ManualAdapter
from trueline.capture.model.mesh import is_dtensor, on_device_mesh, parts_in
from trueline.capture.model.world import ranks_of, world_size

PRECEDENCE = 15


def adapter_for(
    model: nn.Module, process_group: dist.ProcessGroup | None
) -> Fsdp1Adapter | ManualAdapter | ShardedAdapter | None:
    """The adapter of a model among several ranks some of whose parameters are DTensors, or flattened by FSDP1."""
    wrapped = uncompiled(model)
    meshes = list(dict.fromkeys(param.device_mesh for param in wrapped.parameters() if is_dtensor(param)))
    if world_size(process_group) == 1:
        return None
    if (flattened := fsdp1_adapter(wrapped, process_group)) is not None:
        return flattened
    if not meshes:
        return None
    if process_group is not None and all(_is_across(process_group, mesh) for mesh in meshes):
        return DataParallelShards(wrapped, process_group, meshes)
    return ShardedAdapter(process_group, meshes)


class ShardedAdapter(HookingAdapter):
    """Watches one model that all ranks hold together: samples, losses and recorded steps, and no gradients, of which a
    rank has parts only.
    """

    name = "sharded"

    def __init__(self, process_group: dist.ProcessGroup | None, meshes: list[DeviceMesh]) -> None:
        mesh_of_all = parts_in(process_group)
        size = len(mesh_of_all.members)
        several = max(mesh.size() for mesh in meshes) < size or any(mesh.ndim > 1 for mesh in meshes)
        hint = " To compare workers that hold the same shards, pass their process_group." if several else ""
        super().__init__(
            mesh_of_all,
            f"{size} ranks hold one model together ({_text(meshes)}) and are not compared with each other; their "
            f"gradients are not watched, their steps can be recorded.{hint}",
        )


class StagesAdapter(HookingAdapter):
    """Watches one model of which each rank holds other layers, as the ranks have found when they met."""

    name = "sharded"

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        mesh = parts_in(process_group)
        super().__init__(
            mesh,
            f"{len(mesh.members)} ranks hold one model together, as their parameters are not the same "
            "(a pipeline), and are not compared with each other; their gradients are not watched, their steps can be "
            "recorded. To compare workers that hold the same stage, pass their process_group.",
        )


class DataParallelShards(ManualAdapter):
    """Watches the workers of one data-parallel group, which hold the same shards of a model."""

    name = "sharded"

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup, meshes: list[DeviceMesh]) -> None:
        super().__init__(model, process_group)
        self.notes.append(
            f"ranks {', '.join(map(str, self.mesh.members))} hold the same shards of a model ({_text(meshes)}) and are "
            "compared with each other; the ranks that hold its other shards write Runs of their own."
        )


def _is_across(process_group: dist.ProcessGroup, mesh: DeviceMesh) -> bool:
    """Whether no two ranks of the group hold parts of one model."""
    return len(set(ranks_of(process_group)) & set(on_device_mesh(mesh).members)) == 1


def _text(meshes: list[DeviceMesh]) -> str:
    """The meshes that parameters are laid out on, such as ``tp = 2``."""
    return "mesh " + ", ".join(dict.fromkeys(on_device_mesh(mesh).text() for mesh in meshes))
