"""Megatron-core's DistributedDataParallel, with its distributed optimizer or without.

Megatron adds the gradients of all micro-batches up in ``param.main_grad``, views of flat buckets, which a bucket group
reduces in place: ``start_grad_sync`` finds this rank's own there, ``finish_grad_sync`` leaves their mean, or, with the
distributed optimizer, this rank's slice of each bucket of it. What comes after that (tokens by which all are divided,
clipping, copies in float32) is not looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction, uncompiled
from trueline.capture.model.layout import experts
from trueline.capture.model.mesh import workers_in
from trueline.capture.model.untraced import skipped, untraced
from trueline.capture.probes.gradients import GradientProbe

PRECEDENCE = 35


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> MegatronAdapter | None:
    """The adapter of Megatron-core's DDP module."""
    module = sys.modules.get("megatron.core.distributed.distributed_data_parallel")
    ddp, kind = uncompiled(model), getattr(module, "DistributedDataParallel", None)  # an import may have failed halfway
    if kind is None or not isinstance(ddp, kind):
        return None
    return MegatronAdapter(ddp, process_group)


class MegatronAdapter(HookingAdapter):
    """Watches one DDP module of Megatron-core."""

    name = "megatron"

    def __init__(self, ddp: Any, process_group: dist.ProcessGroup | None) -> None:
        super().__init__(workers_in(process_group or ddp.dp_cp_group))
        self._ddp = ddp
        self._dtype = "torch.float32"
        self.own = experts(ddp)

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let bucket groups report to ``probe`` before and after they reduce."""
        self.detach()
        self._probe, self._guard = probe, guard
        self.handles = [_Reducing(group, self) for group in self._ddp.bucket_groups]

    def reduction(self) -> Reduction:
        """Megatron's own: a division and a sum in the dtype of its buckets."""
        return Reduction(
            dtype=self._dtype,
            roundings=len(self.mesh.workers) + 2,
            in_parts=bool(self._ddp.ddp_config.use_distributed_optimizer),
            received=False,
        )

    def see_own(self, group: Any) -> None:
        """The gradients of one bucket group before they are reduced."""
        probe = self._probe
        if probe.active and not (group.is_first_batch and group.grad_reduce_handle is not None):
            with self._guard("gradients"), torch.no_grad():
                self._dtype = str(group.buckets[0].grad_data.dtype)
                pairs = [(param, self._unscaled(param.main_grad)) for b in group.buckets for param in b.params_list]
                probe.see("local", pairs)

    def see_mean(self, group: Any) -> None:
        """Their mean, whole or in the slices that are this rank's."""
        probe = self._probe
        if probe.active:
            with self._guard("gradients"), torch.no_grad():
                probe.see("reduced", [(param, self._unscaled(part)) for param, part in self._parts(group)])

    def _parts(self, group: Any) -> Iterator[tuple[nn.Parameter, Tensor]]:
        if not self._ddp.ddp_config.use_distributed_optimizer:
            yield from ((param, param.main_grad) for bucket in group.buckets for param in bucket.params_list)
            return
        rank, size = group.intra_distributed_optimizer_instance_rank, group.intra_distributed_optimizer_instance_size
        for bucket in group.buckets:
            flat = bucket.grad_data.view(-1)
            width = flat.numel() // size
            for param in bucket.params_list:
                start = (param.main_grad.data_ptr() - flat.data_ptr()) // flat.element_size()
                first, last = max(start, rank * width), min(start + param.numel(), (rank + 1) * width)
                if last <= first:
                    continue
                part = torch.zeros(param.numel(), dtype=flat.dtype, device=flat.device)
                part[first - start : last - start] = flat[first:last]
                yield param, part.view(param.shape)

    def _unscaled(self, gradient: Tensor) -> Tensor:
        """Without the scale that float16 needs, where the configuration names the optimizer that scales."""
        scaling: Any = getattr(getattr(self._ddp, "config", None), "grad_scale_func", None)
        optimizer = getattr(scaling, "__self__", None)
        if gradient.dtype == torch.bfloat16 or getattr(optimizer, "grad_scaler", None) is None:
            return gradient
        return gradient.float() / optimizer.get_loss_scale().to(gradient.device)


class _Reducing:
    """Stands for the methods of one bucket group until it is removed."""

    def __init__(self, group: Any, adapter: MegatronAdapter) -> None:
        self._group = group
        start, finish = group.start_grad_sync, group.finish_grad_sync

        @skipped
        def start_grad_sync(*args: Any, **kwargs: Any) -> Any:
            untraced(adapter.see_own, group)
            return start(*args, **kwargs)

        @skipped
        def finish_grad_sync(*args: Any, **kwargs: Any) -> Any:
            result = finish(*args, **kwargs)
            untraced(adapter.see_mean, group)
            return result

        group.start_grad_sync, group.finish_grad_sync = start_grad_sync, finish_grad_sync

    def remove(self) -> None:
        """Put the originals back."""
        for name in ("start_grad_sync", "finish_grad_sync"):
            self._group.__dict__.pop(name, None)
