"""Which parameters DDP reduces together: the buckets of its reducer, for the backward pass to come."""

from __future__ import annotations

from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trueline.capture.adapters.base import uncompiled
from trueline.capture.model.layout import clean_name
from trueline.capture.record.arguments import Slots
from trueline.capture.record.functions import ENGINE

_PRE_FORWARD = getattr(getattr(nn.parallel.DistributedDataParallel, "_pre_forward", None), "__code__", None)
"""The function of DDP in which it cuts its buckets anew."""


class Bucket(NamedTuple):
    """One bucket: its place in the order in which they are reduced, its elements, and the names of its parameters."""

    index: int
    numel: int
    names: list[str]


class Buckets:
    """The buckets of the DDP module in ``model``; none where there is no such module."""

    def __init__(self, model: nn.Module) -> None:
        inner = uncompiled(model)
        self._ddp: Any = inner if isinstance(inner, nn.parallel.DistributedDataParallel) else None
        self._buckets: list[Bucket] = []
        self._next = 0

    def begin(self) -> None:
        """A forward pass begins: from now to the end of backward DDP keeps its buckets as they are."""
        reducer = None if self._ddp is None else getattr(self._ddp, "reducer", None)
        if reducer is None or torch._C._len_torch_dispatch_stack():  # type: ignore[attr-defined]
            return
        names = {id(param): clean_name(name) for name, param in self._ddp.module.named_parameters()}
        with _NoMemory():
            found = reducer._get_zeros_like_grad_buckets()
        self._buckets = [
            Bucket(bucket.index(), bucket.buffer().numel(), [names.get(id(p), "") for p in bucket.parameters()])
            for bucket in found
        ]
        self._next = 0

    def of(self, group: Any, given: Slots) -> Bucket | None:
        """The bucket that is reduced by a collective that starts now with these inputs, if it is one: DDP starts them
        in their order, and a comm hook may have them in another dtype.
        """
        if not self._buckets or len(given) != 1 or group != self._ddp.process_group:
            return None
        x = given[0][1]
        bucket = self._buckets[self._next % len(self._buckets)]
        if x.numel() != bucket.numel or not (x.is_floating_point() or x.is_complex()):
            return None
        self._next += 1
        return bucket


def is_bookkeeping(frame: FrameType | None, sent: list[Tensor]) -> bool:
    """Whether DDP's reducer, which ``frame`` has called, tells the other ranks how it cuts its buckets, or asks which
    parameters they have used: numbers of its own, that say nothing of the training.
    """
    if any(x.dtype is not torch.int32 for x in sent):
        return False
    return frame is None or frame.f_code is ENGINE or frame.f_code is _PRE_FORWARD


class _NoMemory(TorchDispatchMode):
    """Answers ``zeros_like``, which the reducer makes of every bucket to show it, without a copy of all gradients."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.zeros_like.default:
            x: Tensor = args[0]
            return torch.empty(1, dtype=x.dtype).expand(x.shape)
        return func(*args, **(kwargs or {}))
