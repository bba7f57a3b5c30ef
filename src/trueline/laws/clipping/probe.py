"""Record calls that clip gradients by their norm: arguments, the norm, and some elements before and after."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.layout import Layout
from trueline.capture.model.mesh import is_dtensor
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.around_update.sampling import RAREST, NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import NUM_SLICES, Gathered, ParamSlice, slice_in
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import loss_scaling
from trueline.capture.probes.parts import ProbeParts

MAX_CALLS = 4
"""Calls of a step that are looked at: the last ones."""


_ACCUMULATED = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
"""In what the squares of gradients are summed that are kept in less."""


@dataclass(eq=False)
class _Call:
    """One call. ``numbers`` are float64 [4]: the total norm that it was given (NaN where ranks hold parts of that), the
    squared norms of this rank's shards and of what it holds whole (NaN where they were not computed), and the loss
    scale. ``unscaled`` are the optimizers, by ``id``, whose gradients a scaler had divided by it. ``then`` are the same
    elements when the next backward pass or the update begins, whichever ``facts["then"]`` says; ``versions`` are those
    of gradients before that pass.
    """

    facts: dict[str, Any]
    numbers: Tensor
    slices: Sequence[ParamSlice]
    before: Gathered
    after: Gathered
    unscaled: frozenset[int]
    then: Gathered
    versions: Sequence[int] = ()
    passed: bool = False


class ClippingProbe:
    """Listens to the functions that ``clip_grad_norm_`` of torch itself calls, so that it does not matter by which name
    a script has imported that, and to those that compute a norm and clip by it one by one.
    """

    name = "clipping"
    moments = ("gradients",)
    between = moments

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._times = NowAndThen()
        self._times_of_norms = NowAndThen(RAREST)  # which read every gradient once more
        self._waiting = Waiting[list[_Call]]()
        self._norm_type: float | None = None
        self._late: list[_Call] = []
        self._updated: tuple[Step, frozenset[int]] | None = None
        self._switch = switch = patches.Switch()
        self._forget()
        for patched in patches.clips:
            patched.add(self._before_clip, switch=switch)
            patched.add(self._after_clip, after=True, switch=switch)
        for patched in patches.norms:
            patched.add(self._at_norm, switch=switch)
        patches.scale.add(self._at_scale, switch=switch)
        patches.backward.add(self._before_backward, switch=switch)
        patches.backward.add(self._after_backward, after=True, switch=switch)

    def detach(self) -> None:
        self._forget()
        for patched in patches.clips:
            patched.remove(self._before_clip)
            patched.remove(self._after_clip)
        for patched in patches.norms:
            patched.remove(self._at_norm)
        patches.scale.remove(self._at_scale)
        patches.backward.remove(self._before_backward)
        patches.backward.remove(self._after_backward)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, and the norms of all gradients less often."""
        self._forget()
        if self._times.due(step):
            self._step, self._norms_due = step, self._times_of_norms.due(step)
        due = self._step is not None or self._updated is not None or bool(self._late)
        self._switch.set(due)
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of what the calls of this step were given and did, and of calls that came after the update before."""
        if self._calls and step.gradients_known:
            self._look_again("update")
        late, calls, scaler, watches = self._late, self._calls, self._scaler, self._step is not None
        self._forget()
        self._late, self._updated = [], None
        if watches and step.gradients_known and step.optimizer is not None:
            self._updated = (
                step,
                frozenset(id(param) for group in step.optimizer.param_groups for param in group["params"]),
            )
        for call in calls:
            call.facts["scaled"] = (
                loss_scaling.unscales(scaler, step.optimizer) and id(step.optimizer) not in call.unscaled
            )
        calls = [*late, *calls]
        if not calls:
            return {}
        tensors: dict[str, Tensor] = {}
        for number, call in enumerate(calls):
            tensors |= call.before.hand_over(f"clip_{number}_before") | call.after.hand_over(f"clip_{number}_after")
            if call.facts["then"]:
                tensors |= call.then.hand_over(f"clip_{number}_then")
        self._waiting.add(step.number, calls)
        return tensors | {"clip_numbers": torch.stack([call.numbers for call in calls])}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        calls = self._waiting.take(step.number)
        if not calls:
            return {}
        values: list[Tensor] = []
        for numbers, call in zip(host["clip_numbers"], calls, strict=True):
            values += [numbers, *call.before.flat(host), *call.after.flat(host)]
            values += call.then.flat(host) if call.facts["then"] else []
        return {
            "clip_facts": json.dumps([call.facts for call in calls]),
            "clip_values": torch.cat(values).tolist(),
        }

    def _forget(self) -> None:
        self._step: Step | None = None
        self._norms_due = False
        self._calls: list[_Call] = []
        self._open: _Call | None = None
        self._scaler: Any = None

    def _at_scale(self, scaler: Any, *args: Any, **kwargs: Any) -> None:
        self._scaler = scaler

    def _at_norm(self, tensors: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> None:
        self._norm_type = float(norm_type) if isinstance(norm_type, (int, float, str)) else None

    def _before_clip(self, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> None:
        norm_type, self._norm_type, self._open = self._norm_type, None, None
        step = self._step if self._updated is None else self._updated[0]
        if step is None:
            return
        params: Sequence[Any] = [parameters] if isinstance(parameters, Tensor) else parameters
        if isinstance(params, (list, tuple)) and isinstance(max_norm, (int, float)):
            with self._guard(self.name), torch.no_grad():
                # after an update, calls may be about other parameters, as those of a second model
                if self._updated is not None and self._updated[1].isdisjoint(map(id, params)):
                    return
                self._open = self._look(step, params, total_norm)
                if self._open is not None:
                    self._open.facts |= {"max_norm": float(max_norm), "norm_type": norm_type}
                    for call in self._calls[-1:]:
                        # an earlier call of the step is done with once the next one begins
                        call.passed = True

    def _after_clip(self, *args: Any, **kwargs: Any) -> None:
        call, self._open = self._open, None
        if call is None:
            return
        with self._guard(self.name), torch.no_grad():
            for param_slice in call.slices:
                view = None if param_slice.param.grad is None else param_slice.view(param_slice.param.grad)
                call.after.add(param_slice.param.new_zeros(0) if view is None else view)
            call.after.copy()
            if self._updated is None:
                self._calls = [*self._calls, call][-MAX_CALLS:]
            else:
                call.facts |= {"late": self._updated[0].number, "scaled": False}
                self._late = [*self._late, call][-MAX_CALLS:]

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        if in_backward():
            return
        self._updated = None
        if self._calls:
            with self._guard(self.name), torch.no_grad():
                self._look_again("backward")

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        if self._calls and self._calls[-1].versions and not in_backward():
            with self._guard(self.name):
                call = self._calls[-1]
                call.facts["added"] = any(new > old for new, old in zip(_versions(call), call.versions, strict=True))
                call.versions = ()

    def _look_again(self, when: str) -> None:
        """Copy what has become of the gradients of the last call, once."""
        call = self._calls[-1]
        views = [
            None if param_slice.param.grad is None else param_slice.view(param_slice.param.grad)
            for param_slice in call.slices
        ]
        if call.passed or not views:
            return
        call.passed = True
        live_views = [view for view in views if view is not None]
        # a gradient that was dropped since leaves nothing to compare
        if len(live_views) == len(views):
            for view in live_views:
                call.then.add(view)
            call.then.copy()
            call.facts["then"] = when
            call.versions = _versions(call)

    def _look(self, step: Step, params: Sequence[Any], total: Any) -> _Call | None:
        """The gradients of ``params`` as a call finds them; None where they are not this model's."""
        layout = step.layout
        is_own = [id(param) in layout.index_of for param in params]
        params_with_grads = [param for param in params if getattr(param, "grad", None) is not None]
        if (params and not any(is_own)) or any(param.grad.layout is not torch.strided for param in params_with_grads):
            return None
        chance = random.Random(step.number)
        slices: list[ParamSlice] = []
        before = Gathered()
        for param in chance.sample(params_with_grads, min(NUM_SLICES, len(params_with_grads))):
            param_slice = slice_in(param, layout, chance) if id(param) in layout.index_of else None
            view = None if param_slice is None else param_slice.view(param.grad)
            if param_slice is not None and view is not None:
                slices.append(param_slice)
                before.add(view)
        before.copy()
        facts = {
            "num_params": len(params),
            "num_grads": len(params_with_grads),
            "largest": max((param.numel() for param in params_with_grads), default=0),
            "in_shards": any(_in_shards(layout, param) for param in params_with_grads),
            "known": all(is_own) and layout.mesh.compares and not _is_cut(layout, params_with_grads),
            "dtype": str(total.dtype).removeprefix("torch.") if isinstance(total, Tensor) else "",
            "slices": [[param_slice.name, param_slice.num, _dtype(param_slice.param.grad)] for param_slice in slices],
            "then": "",
            "added": False,
            "late": None,
        }
        unscaled, scale = loss_scaling.unscaled(self._scaler), loss_scaling.scale_of(self._scaler)
        total_norm = _device_scalar(layout, math.nan if is_dtensor(total) else total)
        squares = (
            _squares_of(layout, params_with_grads) if self._norms_due else [torch.full_like(total_norm, math.nan)] * 2
        )
        numbers = torch.stack([total_norm, *squares, _device_scalar(layout, scale)])
        return _Call(facts, numbers, slices, before, Gathered(), unscaled, Gathered())


def _versions(call: _Call) -> list[int]:
    """Number of times that each gradient was written to."""
    return [
        getattr(g, "_local_tensor", g)._version
        for param_slice in call.slices
        if (g := param_slice.param.grad) is not None
    ]


def _squares_of(layout: Layout, params: Sequence[Tensor]) -> list[Tensor]:
    """The squared norms of shards and of whole gradients; float64 [] each."""
    sharded, whole = list[Tensor](), list[Tensor]()
    for param in params:
        grad: Any = param.grad
        # squares of shards are added up over ranks when they are judged, those of whole ones are not
        (sharded if _in_shards(layout, param) else whole).append(getattr(grad, "_local_tensor", grad).detach())
    return [_squares(layout, sharded), _squares(layout, whole)]


def _in_shards(layout: Layout, param: Tensor) -> bool:
    return layout.mesh.shards > 1 and layout.index_of.get(id(param)) not in layout.whole


def _squares(layout: Layout, gradients: Sequence[Tensor]) -> Tensor:
    groups: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        groups[gradient.device, gradient.dtype].append(gradient)
    sums = [_device_scalar(layout, 0.0)]
    for (_, dtype), group in groups.items():
        norms = torch._foreach_norm(group, 2, _ACCUMULATED.get(dtype))
        sums.append(torch.stack(norms).to(layout.device, torch.float64).square().sum())
    return torch.stack(sums).sum()


def _device_scalar(layout: Layout, value: Any) -> Tensor:
    """A number as float64 [] on the device; one that is not there is filled in, since a copy would wait."""
    if isinstance(value, Tensor):
        return value.detach().to(layout.device, torch.float64, copy=True).reshape(())
    return torch.full((), float(value), dtype=torch.float64, device=layout.device)


def _is_cut(layout: Layout, params: Sequence[Tensor]) -> bool:
    """True where ranks hold parts of these that are no shards of what is reduced together, whose norms are not here."""
    param_by_mesh = {(id(p.device_mesh), p.placements): p for p in params if is_dtensor(p)}
    return any("part" in layout.mesh.mesh_of(param).roles for param in param_by_mesh.values())


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def make_probe(parts: ProbeParts) -> ClippingProbe:
    """The probe of this law for one watched model."""
    return ClippingProbe(parts.guard)
