"""Digests of parameters and buffers, so that replicas can be compared bit by bit."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trueline.capture.model.layout import Layout, local, named_buffers, unwrap
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.own_columns import digest_columns
from trueline.tensor.digest import digest_each
from trueline.tensor.memory import is_readable


class ReplicaProbe:
    """Digests parameters before the update and buffers as the forward pass begins, in steps that are due for it, and
    parameters again when watching ends.

    Buffers not before the update, because DDP broadcasts them just before the forward pass and every worker's own batch
    changes them (BatchNorm) just after; and not in an evaluation, which may go round DDP and changes none. Those of a
    DDP that is inside of the model are left out: it broadcasts them within the forward pass.
    """

    name = "replicas"
    moments = ("forward", "update", "closed")
    between = moments

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._has_buffers = False
        self._layout: Layout | None = None
        self._broadcast: frozenset[int] = frozenset()

    def begin(self, step: Step) -> bool:
        self._has_buffers = False
        return step.digests

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``buffer_digests`` int64 [B], of the first forward pass, ``param_digests`` or ``closing_digests``."""
        if moment == "update":
            return {"param_digests": param_digests(step.layout)}
        if moment == "closed":
            return {"closing_digests": param_digests(step.layout)} if step.layout.fits() else {}
        module = step.module
        if self._has_buffers or module is None or module is not unwrap(self._model) or not module.training:
            return {}
        if step.layout is not self._layout:
            self._layout, self._broadcast = step.layout, broadcast_inside(self._model)
        step.facts["buffers"], digests = buffer_digests(self._model, without=self._broadcast)
        self._has_buffers = digests is not None
        return {} if digests is None else {"buffer_digests": digests}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, list[int]]:
        """Digests as uint64."""
        return digest_columns(host, "param_digests", "buffer_digests", "closing_digests")


def param_digests(layout: Layout) -> Tensor:
    """int64 [P + F] digest of each watched, then each frozen parameter's own memory (its shard under FSDP); 0 for one
    that this rank does not hold any more.
    """
    params = [*layout.params, *(param for _, param in layout.frozen)]
    return digest_each([None if p is layout.absent else local(p) for p in params], layout.device)


def broadcast_inside(model: nn.Module) -> frozenset[int]:
    """The ids of buffers that a DDP inside of ``model`` broadcasts as its own forward pass begins."""
    if isinstance(model, DistributedDataParallel):
        return frozenset()
    inner = [part for part in model.modules() if isinstance(part, DistributedDataParallel) and part.broadcast_buffers]
    return frozenset(id(buffer) for part in inner for buffer in part.module.buffers())


def buffer_digests(model: nn.Module, *, without: Container[int] = frozenset()) -> tuple[list[str], Tensor | None]:
    """Names and int64 [B] digests of the registered buffers, but for those that have no bits of their own and those of
    the ids ``without``; None without buffers.
    """
    pairs = [(name, local(buffer)) for name, buffer in named_buffers(model) if id(buffer) not in without]
    pairs = [(name, buffer) for name, buffer in pairs if is_readable(buffer)]
    if not pairs:
        return [], None
    return [name for name, _ in pairs], digest_each([buffer for _, buffer in pairs], pairs[0][1].device)


def make_probe(parts: ProbeParts) -> ReplicaProbe:
    """The probe of this law for one watched model."""
    return ReplicaProbe(parts.model)
