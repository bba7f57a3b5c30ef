"""FSDP2 ``fully_shard``: a reduce-scatter that looks at its input and output and lets the original one work.

The input of a reduce-scatter is the worker's own full gradient in [W, shard] layout, the same on all ranks, so norms
are exact in 1-D and HSDP; the output (after HSDP's all-reduce) is one shard of the mean, and the sketches of the
shards add up to the sketch of the mean. Which parameters take part is read from FSDP's own parameter groups, whose
names are private: where a version of torch lacks them, gradients are left out and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction, uncompiled
from trueline.capture.adapters.manual import watch_accumulation
from trueline.capture.model.layout import fsdp2_groups, named_parameters
from trueline.capture.model.mesh import Mesh, is_dtensor, on_device_mesh, workers_in
from trueline.capture.model.world import ranks_of
from trueline.capture.probes.gradients import GradientProbe
from trueline.schema.text.words import ranks_text

PRECEDENCE = 20


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> Fsdp2Adapter | None:
    """The adapter of a model that has a part to which ``fully_shard`` was applied."""
    wrapped = uncompiled(model)
    sharded = any(hasattr(type(module), "_get_fsdp_state") for module in wrapped.modules())
    return Fsdp2Adapter(wrapped, process_group) if sharded else None


class Fsdp2Adapter(HookingAdapter):
    """Watches one model to which ``fully_shard`` was applied, 1-D or HSDP."""

    name = "fsdp2"

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(workers_in(process_group))
        self._probe: GradientProbe | None = None
        self._guard: Guard | None = None
        groups = list(fsdp2_groups(model))
        # the largest mesh is that of data parallelism; experts are sharded among fewer ranks
        size = max((group.mesh_info.mesh.size() for group in groups), default=0)
        self._groups = [group for group in groups if group.mesh_info.mesh.size() == size]
        if len(groups) > len(self._groups):
            self._leave_out(model, [group for group in groups if group not in self._groups])
        if not groups:
            self.notes.append(
                "this version of torch keeps FSDP2's parameter groups elsewhere: gradients are not watched."
            )
        self.mesh = self._laid_out(model, process_group, [group.mesh_info.mesh for group in groups])
        self._dtype = "torch.float32"
        for group in self._groups:
            self._take_over(group)

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let the reduce-scatters report to ``probe``, and accumulation hooks where ranks hold parameters whole."""
        super().detach()
        self._probe, self._guard = probe, guard
        self.handles = watch_accumulation(probe, guard, due=lambda: True, only=probe.layout.whole)
        if self._groups:
            probe.waiting = self._unreduced
        if probe.layout.whole:
            self._note_whole([probe.layout.names[index] for index in probe.layout.whole])

    def reduction(self) -> Reduction:
        """FSDP's own reduction, in the dtype of the tensors that it reduced last."""
        return Reduction(dtype=self._dtype, roundings=len(self.mesh.workers) + 3)

    def detach(self) -> None:
        """Stop looking; the wrappers stay and only pass on."""
        self._probe = None
        super().detach()

    def _note_whole(self, names: list[str]) -> None:
        examples = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
        note = (
            f"{len(names)} of the parameters are not sharded ({examples}): their values and gradients are compared "
            "between ranks, and are no part of the gradient norm."
        )
        if note not in self.notes:
            self.notes.append(note)

    def _unreduced(self) -> Iterator[nn.Parameter]:
        """Sharded parameters for which a gradient of this rank is still there: no backward has reduced it."""
        for group in self._groups:
            partial = getattr(group, "_partial_reduce_output", None) is not None  # HSDP: in one replica only
            for fsdp_param in group.fsdp_params:
                unsharded = getattr(fsdp_param, "_unsharded_param", None)
                accumulated = getattr(fsdp_param, "unsharded_accumulated_grad", None) is not None
                if partial or accumulated or (unsharded is not None and unsharded.grad is not None):
                    yield fsdp_param.sharded_param

    def _leave_out(self, model: nn.Module, groups: list[Any]) -> None:
        """Leave out what fewer ranks shard: experts, of which other ranks hold others."""
        sharded = {id(fsdp_param.sharded_param) for group in groups for fsdp_param in group.fsdp_params}
        self.own = frozenset(name for name, param in named_parameters(model) if id(param) in sharded)
        names = sorted(self.own)
        self.notes.append(
            f"{len(names)} of the parameters are sharded among fewer ranks than the others, as experts are "
            f"({names[0]} for one): their gradients are not watched."
        )

    def _laid_out(self, model: nn.Module, process_group: dist.ProcessGroup | None, meshes: list[Any]) -> Mesh:
        """FSDP's mesh. Where parameters are cut by tensor parallelism besides, that of the ranks that hold the same
        cut, or, where these are not known, of all ranks, as parts of one model.
        """
        meshes = sorted(dict.fromkeys(meshes), key=lambda mesh: -mesh.size())
        if not meshes:
            return workers_in(process_group)
        fsdp_mesh, *other_meshes = (on_device_mesh(mesh, *("replica", "shard")[-mesh.ndim :]) for mesh in meshes)
        group = fsdp_mesh.members if process_group is None else ranks_of(process_group)
        fsdp_mesh = replace(fsdp_mesh, members=group, other_meshes=tuple(other_meshes))
        axes = fsdp_mesh.ranks.ndim
        params = (param for _, param in named_parameters(model))
        cut = next((p.device_mesh for p in params if is_dtensor(p) and p.device_mesh.ndim > axes), None)
        if cut is None:
            return fsdp_mesh
        whole = on_device_mesh(cut, *fsdp_mesh.roles, *("part" for _ in range(cut.ndim - axes)))
        compared = (
            f"{ranks_text(group)}, which hold the same cut, are compared with each other"
            if len(group) > 1
            else f"no other rank holds the cut of {ranks_text(group)}, which is compared with none"
        )
        self.notes.append(
            f"parameters are cut by tensor parallelism too (mesh {whole.text()}): {compared}; ranks that hold another "
            "one write Runs of their own."
        )
        return fsdp_mesh

    def _take_over(self, group: Any) -> None:
        original_comm = group._reduce_scatter_comm
        # an object of the group itself, so that other groups and a comm of the user's own stay as they are
        group._reduce_scatter_comm = _watched_comm(original_comm, self, group)
        # HSDP: the reduce-scatter's result is only of one replica, and the all-reduce comes after it
        if len(self.mesh.replicas) > 1:
            original_hook = group._all_reduce_hook

            def after_all_reduce(output: Tensor) -> None:
                if original_hook is not None:
                    original_hook(output)
                self.see_output(group, output)

            group._all_reduce_hook = after_all_reduce
        original_post = group.post_backward

        def post_backward(*args: Any, **kwargs: Any) -> Any:
            group._trueline_params = [param for param in group.fsdp_params if _has_gradient(param)]
            return original_post(*args, **kwargs)

        group.post_backward = post_backward

    def see_input(self, group: Any, flat: Tensor, op: Any) -> None:
        """The worker's own gradient of one parameter group, [W * shard] flat, before it is reduced."""
        probe, guard = self._probe, self._guard
        if probe is None or guard is None or not probe.active:
            return
        with guard("gradients"):
            self._dtype = str(flat.dtype)
            size, shards = len(self.mesh.workers), self.mesh.shards
            # FSDP divides before the reduction where the sum could overflow
            predivided = _predivide(flat.dtype, size)
            group._trueline_scale = predivided / size if op == dist.ReduceOp.SUM else 1.0
            x_WS = flat.view(shards, -1)
            pairs = []
            for param, offset, width in _pieces(group, x_WS.shape[1], shards):
                piece_WC = x_WS[:, offset : offset + width]
                pairs.append((param, piece_WC if predivided == 1 else piece_WC.float() * predivided))
            probe.see("local", pairs, add=True)

    def see_output(self, group: Any, flat: Tensor) -> None:
        """This rank's shard of the reduced gradient of one parameter group."""
        probe, guard = self._probe, self._guard
        if probe is None or guard is None or not probe.active:
            return
        with guard("gradients"):
            scale = getattr(group, "_trueline_scale", 1.0)
            pairs = []
            for param, offset, width in _pieces(group, flat.numel(), self.mesh.shards):
                piece = flat[offset : offset + width]
                pairs.append((param, piece if scale == 1.0 else piece.float() * scale))
            probe.see("reduced", pairs, add=True, shard=self.mesh.shard)


def _watched_comm(original: Any, adapter: Fsdp2Adapter, group: Any) -> Any:
    """A reduce-scatter of the same class as ``original`` that reports to ``adapter`` around it."""

    class Watched(type(original)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(original.__dict__)

        def allocate(self, *args: Any, **kwargs: Any) -> Tensor:
            return original.allocate(*args, **kwargs)

        def __call__(
            self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
        ) -> Any:
            adapter.see_input(owner, input_tensor, op)
            work = original(
                output_tensor=output_tensor, input_tensor=input_tensor, group=group, op=op, async_op=async_op
            )
            if len(adapter.mesh.replicas) == 1 and not async_op:
                adapter.see_output(owner, output_tensor)
            return work

    owner = group
    return Watched()


def _has_gradient(fsdp_param: Any) -> bool:
    """True if FSDP will reduce this parameter now: the condition of its own ``post_backward``."""
    if not hasattr(fsdp_param, "_unsharded_param"):
        return False
    return fsdp_param.unsharded_accumulated_grad is not None or fsdp_param.unsharded_param.grad is not None


def _pieces(group: Any, shard_numel: int, shards: int) -> Iterator[tuple[nn.Parameter, int, int]]:
    """(parameter, offset, width) of each parameter within one shard of the flat buffer; raises ValueError if they do
    not fill it.
    """
    offset = 0
    for fsdp_param in getattr(group, "_trueline_params", group.fsdp_params):
        size = fsdp_param._orig_size
        padded_rows = -(-size[0] // shards) * shards if fsdp_param.fsdp_placement.dim == 0 else size[0]
        width = padded_rows * (size.numel() // size[0]) // shards
        yield fsdp_param.sharded_param, offset, width
        offset += width
    if offset != shard_numel:
        raise ValueError(f"FSDP reduced {shard_numel} elements a shard where its parameters make {offset}.")


def _predivide(dtype: torch.dtype, size: int) -> float:
    """Divisor of FSDP2 before it reduces in fp16, so that sums cannot overflow (``_get_gradient_divide_factors``)."""
    if dtype in (torch.float32, torch.bfloat16, torch.float64):
        return 1.0
    factor = 1
    while size % factor == 0 and size / factor > factor:
        factor *= 2
    return float(factor)
