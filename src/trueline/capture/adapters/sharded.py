"""Tensor parallelism: a plain module whose parameters are DTensors that FSDP2 did not make. And pipelines: plain
modules with other parameters on each rank.

The ranks of such a mesh, or such stages, hold one model together and compute on the same samples, on purpose: they are
not compared with each other, and what a rank has of a gradient says nothing about the others'. They share
one Run, in which their steps are recorded. Ranks that hold the same part (``peers.holders``, or the ``process_group``
that the user passes) and read other samples are workers as any others, whose gradients the user's code averages.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trueline.capture.adapters.base import HookingAdapter, uncompiled
from trueline.capture.adapters.fsdp1 import Fsdp1Adapter, fsdp1_adapter
from trueline.capture.adapters.manual import ManualAdapter
from trueline.capture.model.mesh import Mesh, is_dtensor, on_device_mesh, parts_in, workers_in
from trueline.capture.model.world import ranks_of, world_size
from trueline.schema.text.words import ranks_text

PRECEDENCE = 15


def adapter_for(
    model: nn.Module, process_group: dist.ProcessGroup | None
) -> Fsdp1Adapter | SamePart | ShardedAdapter | None:
    """The adapter of a model among several ranks some of whose parameters are DTensors, or flattened by FSDP1."""
    wrapped = uncompiled(model)
    meshes = _meshes(wrapped)
    if world_size(process_group) == 1:
        return None
    if (flattened := fsdp1_adapter(wrapped, process_group)) is not None:
        return flattened
    if not meshes:
        return None
    if process_group is not None and all(_is_across(process_group, mesh) for mesh in meshes):
        return SamePart(wrapped, workers_in(process_group))
    return ShardedAdapter(process_group, meshes)


class ShardedAdapter(HookingAdapter):
    """Watches one model that all ranks hold together: samples, losses and recorded steps, and no gradients, of which a
    rank has parts only.
    """

    name = "sharded"

    def __init__(self, process_group: dist.ProcessGroup | None, meshes: list[DeviceMesh]) -> None:
        mesh_of_all = parts_in(process_group)
        size = len(mesh_of_all.members)
        super().__init__(
            mesh_of_all,
            f"{size} ranks hold one model together ({_text(meshes)}) and are not compared with "
            "each other; their gradients are not watched, their steps can be recorded.",
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
            "recorded.",
        )


class SamePart(ManualAdapter):
    """Watches the workers that hold the same part of a model, and average their gradients by code of the user's."""

    name = "sharded"

    def __init__(self, model: nn.Module, workers: Mesh) -> None:
        super().__init__(model)
        self.mesh = workers
        self.notes.append(
            f"{ranks_text(workers.members)} hold the same part of a model ({_text(_meshes(model))}) and are compared "
            "with each other; the ranks that hold its other parts are in Runs of their own, beside this one."
        )


def _is_across(process_group: dist.ProcessGroup, mesh: DeviceMesh) -> bool:
    """True if no two ranks of the group hold parts of one model."""
    return len(set(ranks_of(process_group)) & set(on_device_mesh(mesh).members)) == 1


def _meshes(model: nn.Module) -> list[DeviceMesh]:
    """Device meshes that parameters are on."""
    return list(dict.fromkeys(param.device_mesh for param in model.parameters() if is_dtensor(param)))


def _text(meshes: list[DeviceMesh]) -> str:
    """The meshes that parameters are laid out on, such as ``tp = 2``; stages of a pipeline have none."""
    return (
        "a stage of a pipeline"
        if not meshes
        else "mesh " + ", ".join(dict.fromkeys(on_device_mesh(mesh).text() for mesh in meshes))
    )
