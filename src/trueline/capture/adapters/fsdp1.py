"""FSDP1 (``FullyShardedDataParallel``): the flat gradient of each of its modules, before and after it is reduced.

FSDP1 flattens the parameters of a module into one, cuts that into one shard a rank, and reduces its gradient in
``torch.distributed.fsdp._runtime_utils._reduce_grad`` (private, as all that is read of a ``FlatParamHandle`` here;
torch 2.1 to 2.13 have it). The gradient that this finds is the rank's own, the shard that it leaves the mean. A shard
does not end where a parameter does, so a rank shows its part of each parameter's mean with zeros around it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction
from trueline.capture.adapters.manual import watch_accumulation
from trueline.capture.model.layout import in_shards
from trueline.capture.model.mesh import Mesh, workers_in
from trueline.capture.model.patches import PatchedCall
from trueline.capture.model.world import ranks_of
from trueline.capture.probes.gradients import GradientProbe


def fsdp1_adapter(model: nn.Module, process_group: dist.ProcessGroup | None) -> Fsdp1Adapter | None:
    """The adapter of a model that has a part inside ``FullyShardedDataParallel``."""
    modules = list(_modules(model))
    return Fsdp1Adapter(modules, process_group) if modules else None


class Fsdp1Adapter(HookingAdapter):
    """Watches one model inside FSDP1, of any sharding strategy."""

    name = "fsdp1"

    def __init__(self, modules: list[Any], process_group: dist.ProcessGroup | None) -> None:
        super().__init__(_mesh(modules, workers_in(process_group)))
        self._handles = {id(module._handle): module._handle for module in modules}
        self._dtype = "torch.float32"
        self._unlike = _unlike(modules, self.mesh)
        if self._unlike:
            self.notes.append(
                f"FullyShardedDataParallel (FSDP1) {self._unlike}: samples, losses and what ranks hold alike are "
                "compared; gradients are not watched. fully_shard (FSDP2) is watched whole."
            )
            return
        for handle in self._handles.values():
            for param, _, shape in _pieces(handle):
                param._trueline_shape = shape  # of it a rank holds less

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let the reductions report to ``probe``, and accumulation hooks where ranks hold parameters whole."""
        self.detach()
        self._probe, self._guard = probe, guard
        probe.blind = bool(self._unlike)
        self.handles = watch_accumulation(probe, guard, due=lambda: True, only=probe.layout.whole)
        if not self._unlike:
            probe.received = self._see_received
            for reduction in _reductions():
                reduction.add(self._see_own)
                reduction.add(self._see_mean, after=True)

    def reduction(self) -> Reduction:
        """FSDP's own, in the dtype of what it reduced last; what the optimizer receives is not looked at."""
        if self._unlike:
            return Reduction(seen=False)
        return Reduction(dtype=self._dtype, roundings=len(self.mesh.workers) + 3, received=False)

    def detach(self) -> None:
        if not self._unlike:
            for reduction in _reductions():
                reduction.remove(self._see_own)
                reduction.remove(self._see_mean)
        super().detach()

    def _see_own(self, state: Any, handle: Any) -> None:
        """The rank's own flat gradient, of one micro-batch or, after ``no_sync``, of several."""
        if id(handle) not in self._handles or not self._probe.active:
            return
        with self._guard("gradients"):
            flat = handle.flat_param.grad
            self._dtype = str(flat.dtype)
            pieces = [(param, flat[start : start + shape.numel()], shape) for param, start, shape in _pieces(handle)]
            # What is not cut stays in .grad, where the next micro-batch is added to its mean.
            self._probe.see("local", map(self._for_probe, pieces), add=handle.uses_sharded_strategy)

    def _see_mean(self, state: Any, handle: Any) -> None:
        """This rank's shard of the mean over ranks, of all micro-batches so far."""
        if id(handle) not in self._handles or not self._probe.active:
            return
        stream = state._all_reduce_stream if len(self.mesh.replicas) > 1 else state._post_backward_stream
        with self._guard("gradients"), state._device_handle.stream(stream):
            flat_param = handle.flat_param
            shard = flat_param._saved_grad_shard if handle.uses_sharded_strategy else flat_param.grad
            first = handle.rank * shard.numel() if handle.uses_sharded_strategy else 0
            pieces = []
            for param, start, shape in _pieces(handle):
                low, high = max(start, first), min(start + shape.numel(), first + shard.numel())
                if low < high:
                    padding = low - start, start + shape.numel() - high
                    pieces.append((param, functional.pad(shard[low - first : high - first], padding), shape))
            self._probe.see("reduced", map(self._for_probe, pieces))

    def _see_received(self) -> None:
        """Show the gradients that the optimizer receives of parameters held whole; other ``.grad`` are cut anywhere."""
        whole = (self._probe.layout.params[index] for index in self._probe.layout.whole)
        self._probe.see("used", [(param, param.grad) for param in whole if param.grad is not None])

    def _for_probe(self, piece: tuple[nn.Parameter, Tensor, Any]) -> tuple[nn.Parameter, Tensor]:
        """A parameter with its flat gradient as the probe takes it: cut as its mean is, or in its own shape."""
        param, flat, shape = piece
        return param, in_shards(flat, self.mesh.shards) if self.mesh.shards > 1 else flat.view(shape)


@functools.cache
def _reductions() -> tuple[PatchedCall, PatchedCall]:
    """FSDP1's reductions of a cut and of a whole flat parameter, one pair a process."""
    from torch.distributed.fsdp import _runtime_utils

    return PatchedCall(_runtime_utils, "_reduce_grad"), PatchedCall(_runtime_utils, "_reduce_grad_no_shard")


def _pieces(handle: Any) -> Iterator[tuple[nn.Parameter, int, Any]]:
    """(parameter, where it begins in the flat gradient, shape of the whole of it): the flat parameter itself, unless
    the user keeps the original ones.
    """
    flat_param = handle.flat_param
    if not handle._use_orig_params:
        yield flat_param, 0, flat_param._unpadded_unsharded_size
        return
    offsets = zip(handle._get_flat_param_offsets(), flat_param._is_padding_mask, strict=True)
    starts = (start for (start, _), is_padding in offsets if not is_padding)
    yield from zip(flat_param._params, starts, flat_param._shapes, strict=True)


def _unlike(modules: list[Any], mesh: Mesh) -> str:
    """The part of the modules' layout that is not followed, as a clause; '' where all is."""
    handles = [module._handle for module in modules]
    if len({(handle.uses_sharded_strategy, handle.world_size) for handle in handles}) > 1:
        return "cuts some modules into other shards than others"
    if any(module._comm_hook is not None for module in modules):
        return "reduces by a comm hook"
    return ""


def _modules(model: nn.Module) -> Iterator[Any]:
    """Modules whose parameters FSDP1 has flattened (private: ``_handle``, a ``_flat_param.FlatParamHandle``)."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FullyShardedDataParallel) and getattr(module, "_handle", None) is not None:
            yield module


def _mesh(modules: list[Any], workers: Mesh) -> Mesh:
    """Replicas of shards: of modules that are cut into other numbers of shards, as the one with the most."""
    sharded = [module for module in modules if module._handle.uses_sharded_strategy]
    if not sharded:
        return workers
    widest = max(sharded, key=lambda module: module._handle.world_size)
    shards = np.array(ranks_of(widest._handle.process_group))
    inter_node_group = getattr(widest, "_inter_node_pg", None)
    replicas = np.array([workers.rank] if inter_node_group is None else ranks_of(inter_node_group))
    ranks = replicas[:, None] + shards - workers.rank  # FSDP1 takes the same ranks of each machine
    return replace(workers, ranks=ranks, names=("replicate", "shard"), roles=("replica", "shard"), flat=True)
