"""Digests of parameters and buffers, so that replicas can be compared bit by bit."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from trueline.capture.model.layout import Layout, clean_name, local, named_buffers, unwrap
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.own_columns import digest_columns
from trueline.tensor.digest import digest_each
from trueline.tensor.memory import is_readable

BufferState = tuple[str, nn.Module, str, Tensor, int]
"""Of a buffer its clean FQN, its module, its name there, itself and its version."""


class ReplicaProbe:
    """Digests parameters before the update and buffers as the forward pass begins, in steps that are due for it, and
    parameters again when watching ends.

    Buffers not before the update, because DDP broadcasts them just before the forward pass and every worker's own batch
    changes them (BatchNorm) just after; and not in an evaluation, which may go round DDP and changes none. Those of a
    DDP that is inside of the model are left out: it broadcasts them within the forward pass.

    What the forward pass has changed of buffers that DDP broadcasts is digested before the update, but for those of
    batch normalisation, of which it is known that rank 0's are used, and those that are not saved.
    """

    name = "replicas"
    moments = ("forward", "update", "closed")
    between = moments

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._has_buffers = False
        self._layout: Layout | None = None
        self._broadcast: frozenset[int] = frozenset()
        self._before: list[BufferState] = []

    def begin(self, step: Step) -> bool:
        self._has_buffers = False
        self._before = []
        return step.digests

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``buffer_digests`` int64 [B], of the first forward pass, ``param_digests`` or ``closing_digests``."""
        if moment == "update":
            return {"param_digests": param_digests(step.layout)} | self._changed(step)
        if moment == "closed":
            return {"closing_digests": param_digests(step.layout)} if step.layout.fits() else {}
        module = step.module
        if self._has_buffers or module is None or module is not unwrap(self._model) or not module.training:
            return {}
        if step.layout is not self._layout:
            self._layout, self._broadcast = step.layout, broadcast_inside(self._model)
        step.facts["buffers"], digests = buffer_digests(self._model, without=self._broadcast)
        self._has_buffers = digests is not None
        if digests is None:
            return {}
        self._before = [*broadcast_states(self._model)]
        return {"buffer_digests": digests}

    def _changed(self, step: Step) -> dict[str, Tensor]:
        """``changed_buffers`` int64 [B]: digests of those that the passes since have changed, 0 of the others."""
        before, self._before = self._before, []
        changed = {
            fqn: local(now)
            for fqn, module, name, buffer, version in before
            if (now := module._buffers.get(name)) is not None and (now is not buffer or now._version != version)
        }
        changed = {fqn: buffer for fqn, buffer in changed.items() if is_readable(buffer)}
        if not changed:
            return {}
        names: list[str] = step.facts["buffers"]
        return {"changed_buffers": digest_each([changed.get(name) for name in names], step.layout.device)}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, list[int]]:
        """Digests as uint64."""
        return digest_columns(host, "param_digests", "buffer_digests", "closing_digests", "changed_buffers")


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


def broadcast_states(model: nn.Module) -> Iterator[BufferState]:
    """The buffers that a DDP ``model`` broadcasts and saves, but for those of batch normalisation."""
    if not isinstance(model, DistributedDataParallel) or not model.broadcast_buffers:
        return
    for prefix, module in model.module.named_modules():
        if not isinstance(module, _NormBase):
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.numel() and name not in module._non_persistent_buffers_set:
                    yield clean_name(f"{prefix}.{name}" if prefix else name), module, name, buffer, buffer._version


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
