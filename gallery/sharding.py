"""FSDP2 as the entries use it: how models are sharded, and a reduce-scatter that can be tampered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def sharded(model: nn.Module, mesh: DeviceMesh | None = None, **settings: Any) -> nn.Module:
    """``model`` (a CausalLM) with each block and the rest under ``fully_shard``."""
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def hybrid_mesh(world_size: int) -> DeviceMesh:
    """Two replicas, each sharded over half of the ranks: neighbours share a replica."""
    return init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))


def reduce_scatter_then(spoil: Callable[[Tensor], object]) -> Any:
    """FSDP2's own reduce-scatter, which hands its output shard to ``spoil`` before anyone reads it.

    The base class is private in torch and only needed to build an entry, so it is imported here and nowhere else.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    class ReduceScatter(DefaultReduceScatter):
        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
        ) -> Any:
            work = super().__call__(output_tensor, input_tensor, group, op, async_op)
            if work is not None:
                work.wait()
            spoil(output_tensor)
            return work

    return ReduceScatter()
