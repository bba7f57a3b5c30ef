"""Measure what gradient hooks see: a squared norm and a sketch per parameter, in four phases of one step.

``local`` is the worker's own gradient before any reduction, ``entered`` what the user's own code gives into one,
``reduced`` what the reduction returned, ``used`` what the optimizer is about to receive. Hooks call ``see``; nothing
here synchronises or communicates.

Letters: P parameters, G groups, k sketch length, W shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Adapter, Guard
from trueline.capture.model.layout import local
from trueline.capture.probes.base import Moment, Step
from trueline.capture.step.own_columns import MISSING, gradient_columns
from trueline.tensor.sketch import Measured

Phase = Literal["local", "entered", "reduced", "used"]
PHASES: tuple[Phase, ...] = ("local", "entered", "reduced", "used")

SAME_ORDER = 1 - 1e-3
"""The least squared cosine of a flat buffer and the gradients in its order: a buffer in bfloat16 has 1 - 4e-6."""


@dataclass
class _PhaseCalls:
    """The calls of one phase: a bucket, a parameter group or one parameter each, by the parameters it was about.

    ``earlier`` is the sketch, float64 [G, k], of what earlier backward passes of the step gave and is in no call;
    ``adds`` whether that is anything, bool [].
    """

    calls: dict[tuple[int, ...], Measured] = field(default_factory=dict)
    times: dict[tuple[int, ...], int] = field(default_factory=dict)
    earlier: Tensor | None = None
    adds: Tensor | None = None
    zero: tuple[int, ...] = ()
    whole: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Remainder:
    """Gradients that reductions have left in ``.grad``: None where nothing is. ``copies`` as those of the probe."""

    measured: Measured | None
    copies: dict[int, Tensor]


class GradientProbe:
    """Collects one step's gradients. ``active`` is False on steps that are not sampled; hooks then do nothing.

    ``wants_reduced`` is False on steps at which what the optimizer receives stands for the result of the reduction.
    """

    name = "gradients"
    moments = ("update", "gradients")

    def __init__(self, adapter: Adapter, guard: Guard) -> None:
        self.active = self.wants_reduced = self.exact = False
        self.waiting: Callable[[], Iterable[Tensor]] | None = None
        self._adapter = adapter
        self._guard = guard
        self._forget()

    @property
    def between(self) -> tuple[Moment, ...]:
        """The update, where the framework may hold gradients back."""
        return () if self.waiting is None else ("update",)

    def begin(self, step: Step) -> bool:
        """Forget the step before; measure in this one if it is sampled, by the Layout that is now in force."""
        if step.layout is not getattr(self, "layout", None):
            self.layout = step.layout
            self._attach()
        step.measures = self.active = step.sampled and self._adapter.mesh.compares
        self.wants_reduced = step.rechecks
        self.exact = self.active and step.keeps_sketch and step.plan.exact
        self._forget()
        return step.watched

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """The column ``unreduced_params``, and ``payload`` of a step in which gradients are measured."""
        if moment == "update":
            return self.unreduced()
        if not self.active:
            return {}
        if step.gradients_known:
            self.see_used()
        return self.payload()

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """Norms, as this worker knows them by itself."""
        if "flat_orders" in host:
            likeness = host["flat_orders"].tolist()
            order, likeliest = max(zip(self._orders, likeness, strict=True), key=lambda pair: pair[1])
            self.flat_order = order if likeliest >= SAME_ORDER else self.flat_order
        return gradient_columns(host, step.layout)

    def _attach(self) -> None:
        self.blind = False
        """True if only parameters that ranks hold whole can be measured: other ``.grad`` are pieces of unknown layout.
        """
        self.alone = False
        """True if nothing reduces, so that what the optimizer receives is the worker's own gradient."""
        self.waiting = None
        """The parameters for which the framework holds a gradient that is not reduced yet; None where it keeps none."""
        self.received: Callable[[], None] | None = None
        """Shows what came of the reduction, where that is not in ``.grad``, just before an update."""
        self.flat_order: str | None = None
        self._orders: tuple[str, ...] = ()
        self._adapter.attach(self, self._guard)

    def see_orders(self, likeness: Mapping[str, Tensor]) -> None:
        """Take how alike, float64 [] each, a flat buffer is to the gradients in orders of these names: ``flat_order``
        is the one that is the same, once that has come to the host.
        """
        self._orders, self._likeness = tuple(likeness), torch.stack([*likeness.values()])

    def _forget(self) -> None:
        self._likeness: Tensor | None = None
        self.copies: dict[int, Tensor] = {}
        """Of the local gradients, float32, by position, where they are compared exactly."""
        self._remainder: _Remainder | None = None
        self._phases: dict[Phase, _PhaseCalls] = {phase: _PhaseCalls() for phase in PHASES}

    @property
    def has_local(self) -> bool:
        """True if gradients were seen before their reduction in this step."""
        return bool(self._phases["local"].calls)

    def before_backward(self, gradients: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Measure (parameter, ``.grad``) pairs as a backward pass of the model begins, the first since a reduction of
        the same step: ``local`` gradients seen next have what that left in them, not what this worker gave.
        """
        if self._remainder is not None or not self.has_local:
            return
        pairs = self._watched(gradients)
        copies = {index: gradient.to(torch.float32, copy=True) for index, gradient in pairs} if self.exact else {}
        self._remainder = _Remainder(self.layout.sketcher.measure(pairs) if pairs else None, copies)

    def see(
        self,
        phase: Phase,
        gradients: Iterable[tuple[Tensor, Tensor]],
        *,
        add: bool = False,
        shard: int | None = None,
        zero: Iterable[Tensor] = (),
    ) -> None:
        """Measure (parameter, gradient) pairs that a hook has at one time; sharded gradients are [W, C], or flat [C]
        with ``shard``, the one of the W shards that they are.

        A second look at a parameter in one step replaces the first (what accumulates in ``.grad`` holds the earlier
        micro-batches already), or is added to it with ``add`` (FSDP hands over each micro-batch by itself; norms then
        come from the sketch, as the cross terms between micro-batches are not at hand), as it is after
        ``before_backward``, whose gradients are taken off. ``zero`` are parameters that
        have no gradient and are reduced as if it were zero. Of a parameter that ranks hold whole, while others are in
        shards, only the norm is measured.
        """
        index_of, pairs = self.layout.index_of, self._watched(gradients)
        if phase == "local":
            self._take_off()
        phase_calls = self._phases[phase]
        if self.layout.whole:
            whole = {index: gradient for index, gradient in pairs if index in self.layout.whole}
            phase_calls.whole |= {index: _norm2(gradient) for index, gradient in whole.items()}
            # others are in shards, and a sketch of both would be no sum over ranks
            pairs = [(index, gradient) for index, gradient in pairs if index not in whole]
        if self.blind or not pairs:
            return
        measured = self.layout.sketcher.measure(pairs, shard=shard)
        phase_calls.zero = tuple(index_of[id(param)] for param in zero if id(param) in index_of)
        key = measured.indices
        if add and key in phase_calls.calls:
            phase_calls.times[key] = phase_calls.times.get(key, 1) + 1
            measured = _sum(phase_calls.calls[key], measured)
        elif key not in phase_calls.calls and any(not set(key).isdisjoint(indices) for indices in phase_calls.calls):
            phase_calls.calls.clear()  # DDP has cut its buckets anew since the micro-batch before
        phase_calls.calls[key] = measured
        if self.exact and phase == "local":
            self._keep(pairs, add=add or phase_calls.earlier is not None)

    def see_used(self) -> None:
        """Measure what the optimizer is about to receive: ``.grad`` of every parameter that has one, or this rank's
        shard of it. Where the framework keeps it elsewhere, what that shows.
        """
        if self.received is not None:
            self.received()
            return
        gradients = [(param, local(param.grad)) for param in self.layout.params if param.grad is not None]
        if self.layout.mesh.shards == 1:
            self.see("local" if self.alone else "used", gradients)
            return
        widths, index_of = self.layout.sketcher.widths, self.layout.index_of
        gradients = [(param, _padded(gradient, widths[index_of[id(param)]])) for param, gradient in gradients]
        self.see("used", gradients, shard=self.layout.mesh.shard)

    def unreduced(self) -> dict[str, list[int]]:
        """The column ``unreduced_params``, where the framework keeps gradients that it has not reduced."""
        if self.waiting is None:
            return {}
        index_of = self.layout.index_of
        return {"unreduced_params": [index_of[id(param)] for param in self.waiting() if id(param) in index_of]}

    def payload(self) -> dict[str, Tensor]:
        """Per phase, ``<phase>_norm2`` float64 [P] (NaN-free: -1 where nothing was seen) and ``<phase>_sketch``
        float64 [G*k]; where micro-batches were added up, ``<phase>_group_norm2`` [G] of their sum and
        ``<phase>_times``, how many there were at most; ``<phase>_whole_norm2`` of ``Layout.whole``.
        """
        like = {"dtype": torch.float64, "device": self.layout.device}
        payload: dict[str, Tensor] = {} if self._likeness is None else {"flat_orders": self._likeness}
        for phase, phase_calls in self._phases.items():
            if phase_calls.whole:
                missing = torch.full((), MISSING, **like)
                norms2 = [phase_calls.whole.get(index, missing).to(missing.device) for index in self.layout.whole]
                payload[f"{phase}_whole_norm2"] = torch.stack(norms2)
            if not phase_calls.calls:
                continue
            norm2 = torch.full((len(self.layout.names),), MISSING, **like)
            for index in phase_calls.zero:  # one by one: a list of them would have to be copied to the device
                norm2[index].zero_()
            for measured in phase_calls.calls.values():
                norm2.index_copy_(0, measured.positions, measured.norm2)
            sketch = self._sketch(phase_calls)
            payload[f"{phase}_norm2"] = norm2
            payload[f"{phase}_sketch"] = sketch.view(-1)
            if phase_calls.times:
                payload[f"{phase}_group_norm2"] = sketch.square().sum(dim=1)
                payload[f"{phase}_times"] = torch.full((), max(phase_calls.times.values()), **like)
            elif phase_calls.adds is not None:
                payload[f"{phase}_group_norm2"] = sketch.square().sum(dim=1)
                payload[f"{phase}_times"] = phase_calls.adds + 1
        return payload

    def _watched(self, gradients: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[int, Tensor]]:
        """The gradients of watched parameters by position."""
        index_of, strided = self.layout.index_of.get, torch.strided
        return [
            (index, gradient.detach() if gradient.requires_grad else gradient)
            for param, gradient in gradients
            if (index := index_of(id(param))) is not None and gradient.layout is strided
        ]

    def _sketch(self, phase_calls: _PhaseCalls) -> Tensor:
        """Float64 [G, k] of all that was seen in one phase."""
        shape = (len(self.layout.groups), self.layout.k)
        sketch = torch.zeros(shape, dtype=torch.float64, device=self.layout.device)
        for measured in phase_calls.calls.values():
            sketch.index_add_(0, measured.groups, measured.sketch)
        return sketch if phase_calls.earlier is None else sketch.add_(phase_calls.earlier)

    def _take_off(self) -> None:
        """Keep of the local gradients of earlier backward passes what is not in ``.grad`` any more, now that the worker
        has added to what the reduction left there. Where that is nothing, or zero, the user has cleared it: the earlier
        passes are no part of this step then.
        """
        remainder, self._remainder = self._remainder, None
        if remainder is None:
            return
        phase_calls, self._phases["local"] = self._phases["local"], _PhaseCalls()
        if remainder.measured is None:
            self.copies = {}
            return
        adds = remainder.measured.norm2.sum() > 0
        earlier = self._sketch(phase_calls).index_add_(
            0, remainder.measured.groups, remainder.measured.sketch, alpha=-1
        )
        self._phases["local"].earlier, self._phases["local"].adds = torch.where(adds, earlier, 0.0), adds
        for index, copy in self.copies.items():
            self.copies[index] = torch.where(adds, copy - remainder.copies.get(index, 0.0), 0.0)

    def _keep(self, pairs: list[tuple[int, Tensor]], *, add: bool) -> None:
        for index, gradient in pairs:
            copy = gradient.to(torch.float32, copy=True)
            self.copies[index] = self.copies[index] + copy if add and index in self.copies else copy


def _norm2(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient, dtype=torch.float64).square()


def _padded(gradient: Tensor, width: int) -> Tensor:
    """One shard flat, with the zeros behind it that FSDP reduces for the last ones."""
    flat = gradient.reshape(-1)
    return flat if flat.numel() >= width else nn.functional.pad(flat, (0, width - flat.numel()))


def _sum(first: Measured, second: Measured) -> Measured:
    return dataclasses.replace(second, norm2=first.norm2 + second.norm2, sketch=first.sketch + second.sketch)
