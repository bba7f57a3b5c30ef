"""Find gradients that an update has used and that are not cleared before more are added to them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.layout import Layout
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import (
    NUM_SLICES,
    Gathered,
    ParamSlice,
    num_slices,
    sample_slices,
    slice_in,
)
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts

MAX_LOOKS = 8
"""Backward passes of a step before which gradients are looked at: later ones of long accumulations tell no more."""

NUM_MARKED = 4
"""Parameters whose gradients are marked at every update, at equal distances, the last one among them: two attributes
of each are read, and nothing on a device."""

MAX_CLEARED_UNSEEN = 3
"""Steps at which marked gradients were cleared though no write was counted (``.grad.data.zero_()``), after which no
more are marked: a look at each step would cost more than it tells."""


@dataclass(eq=False)
class _KeptGradient:
    """A gradient as an update left it: elements at ``param_slice`` of the tensor whose ``id`` was ``grad_id``.
    ``added_to`` is true once a backward pass has added to it.
    """

    param_slice: ParamSlice
    grad_id: int
    added_to: bool = False

    @property
    def grad(self) -> Tensor | None:
        """The parameter's gradient, if it is still the tensor that the update left."""
        grad = self.param_slice.param.grad
        return grad if grad is not None and id(grad) == self.grad_id else None


@dataclass(eq=False)
class _GradientSample:
    """Gradients as the update before ``step`` left them, and looks at them before its backward passes: copies, and of
    which of ``gradients`` they are. ``versions`` are those before the backward pass that runs.
    """

    step: int
    positions: Mapping[int, int]
    gradients: list[_KeptGradient]
    copies: Gathered
    looks: list[tuple[Sequence[_KeptGradient], Gathered]] = field(
        default_factory=list[tuple[Sequence[_KeptGradient], Gathered]]
    )
    alive: list[_KeptGradient] = field(default_factory=list[_KeptGradient])
    versions: Sequence[int] = ()
    by_mark: bool = False


class _Marks(NamedTuple):
    """Gradients as the update before a step left them: slice, ``id``, and how often each was written to until then."""

    gradients: list[tuple[ParamSlice, int, int]]
    optimizer: Any


class KeptGradientProbe:
    """Copies sampled elements of the gradients that an update leaves, and again when the backward passes of the next
    step begin, by listening to ``backward``. Gradients that are dropped (``set_to_none``) cost nothing more.

    Between samples, a few gradients are marked: one that is the same tensor when backward begins, and that nothing has
    written to since the update, was not cleared, and is looked at as a sample is.
    """

    name = "kept gradients"
    moments = ("gradients", "updated")
    between = moments

    def __init__(self, guard: Guard, *, rank: int) -> None:
        self._guard = guard
        self._next_param = rank * NUM_SLICES  # replicas look at other parameters
        self._times = NowAndThen()
        self._sample: _GradientSample | None = None
        self._waiting = Waiting[_GradientSample]()
        self._step: Step | None = None
        self._marks: _Marks | None = None
        self._marked_slices: list[ParamSlice] = []
        self._marked_of: Layout | None = None
        self._marked_by: Any = None
        self._num_cleared_unseen = 0
        self._switch = patches.Switch()
        patches.backward.add(self._before_backward, switch=self._switch)
        patches.backward.add(self._after_backward, after=True, switch=self._switch)

    def detach(self) -> None:
        self._sample = self._marks = self._step = self._marked_of = self._marked_by = None
        self._marked_slices = []
        patches.backward.remove(self._before_backward)
        patches.backward.remove(self._after_backward)

    def begin(self, step: Step) -> bool:
        """Wherever an update before it was seen: in the first steps, then now and then, a sample is taken, and its
        gradients are looked at in the step after it; in all others those that were marked.
        """
        if self._sample is not None and (not step.watched or self._sample.step != step.number):
            self._sample = None
        self._keeps = self._times.due(step)
        before, self._step = self._step, step if step.watched else None
        self._marks = None
        if self._sample is None and before is not None and before.number + 1 == step.number and self._step is not None:
            self._marks = self._mark(before)
        looks = self._sample is not None or self._marks is not None
        self._switch.set(looks)
        return self._keeps or looks

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of the elements, of this step; then of what its update leaves, for the next."""
        if moment == "updated":
            self._sample = self._of_update(step) if self._keeps else None
            return {}
        marks, self._marks = self._marks, None
        # the marked gradients were those of another optimizer, as where two of them take turns
        if marks is not None and marks.optimizer is not step.optimizer:
            self._sample = None
        sample, self._sample = self._sample, None
        if sample is None or not sample.looks:
            return {}
        trained_ids = (
            {id(param) for group in step.optimizer.param_groups for param in group["params"]} if step.optimizer else ()
        )
        sample.alive = [
            gradient
            for gradient in sample.alive
            if gradient.grad is not None
            and gradient.added_to
            and (not trained_ids or id(gradient.param_slice.param) in trained_ids)
        ]
        self._waiting.add(step.number, sample)
        if not sample.alive:
            return {}
        copies = sample.copies.hand_over("kept")
        for number, (_, look) in enumerate(sample.looks):
            copies |= look.hand_over(f"kept_{number}")
        return copies

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        sample = self._waiting.take(step.number)
        if sample is None:
            return {}
        # without values on the host nobody can say whether they were cleared
        alive = set(sample.alive) if any(name.startswith("kept") for name in host) else set[_KeptGradient]()
        if alive:
            values_left = dict(zip(sample.gradients, sample.copies.values(host), strict=True))
            for number, (gradients, look) in enumerate(sample.looks):
                for gradient, values in zip(gradients, look.values(host), strict=True):
                    is_unchanged = values.equal(values_left[gradient]) if number == 0 else True
                    if not (is_unchanged and bool(values.any())):
                        alive.discard(gradient)
        if sample.by_mark and not alive:
            self._num_cleared_unseen += 1
            return {}
        return {"kept_gradients": sorted(sample.positions[id(gradient.param_slice.param)] for gradient in alive)}

    def _of_update(self, step: Step) -> _GradientSample | None:
        """Sampled elements of the gradients that the update leaves; None where none are to be seen."""
        optimizer, layout = step.optimizer, step.layout
        if optimizer is None:
            return None
        slices, self._next_param = sample_slices(
            optimizer, layout, first=self._next_param, num=num_slices(step.age), random=random.Random(step.number)
        )
        slice_by_param = {id(param_slice.param): param_slice for param_slice in slices}  # one a parameter
        copies, gradients = Gathered(), list[_KeptGradient]()
        for param_slice in slice_by_param.values():
            view = _view(param_slice, param_slice.param.grad) if _is_trained(param_slice, layout) else None
            if view is not None:
                copies.add(view)
                gradients.append(_KeptGradient(param_slice, id(param_slice.param.grad)))
        if not gradients:
            return None
        copies.copy()
        return _GradientSample(step.number + 1, layout.index_of, gradients, copies, alive=list(gradients))

    def _mark(self, before: Step) -> _Marks | None:
        """The gradients that the update of the step ``before`` has left, of a few parameters that it was of."""
        optimizer, layout = before.optimizer, before.layout
        if optimizer is None or not before.gradients_known or self._num_cleared_unseen >= MAX_CLEARED_UNSEEN:
            return None
        if layout is not self._marked_of or optimizer is not self._marked_by:
            self._marked_of, self._marked_by = layout, optimizer
            held_ids = {id(param) for group in optimizer.param_groups for param in group["params"]}
            params = [param for param in layout.params if id(param) in held_ids]
            chosen_params = params[:: -max(1, len(params) // NUM_MARKED)][:NUM_MARKED]
            chance = random.Random(before.number)
            self._marked_slices = [
                param_slice for param in chosen_params if (param_slice := slice_in(param, layout, chance)) is not None
            ]
        marked = [
            (param_slice, id(grad), _version(grad))
            for param_slice in self._marked_slices
            if (grad := param_slice.param.grad) is not None and param_slice.param.requires_grad
        ]
        return _Marks(marked, optimizer) if marked else None

    def _look_at_marked(self) -> None:
        """Make a sample of the marked gradients, if any is there as the update has left it."""
        marks, step = self._marks, self._step
        if marks is None or step is None:
            return
        unwritten = [
            _KeptGradient(param_slice, grad_id)
            for param_slice, grad_id, version in marks.gradients
            if (grad := param_slice.param.grad) is not None and id(grad) == grad_id and _version(grad) == version
        ]
        marks.gradients.clear()
        if not unwritten:  # as they were cleared
            return
        copies, gradients = Gathered(), list[_KeptGradient]()
        for gradient in unwritten:
            view = _view(gradient.param_slice, gradient.grad)
            if view is not None:
                copies.add(view)
                gradients.append(gradient)
        if gradients:
            copies.copy()
            index_of = step.layout.index_of
            self._sample = _GradientSample(
                step.number, index_of, gradients, copies, alive=list(gradients), by_mark=True
            )

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        if self._marks is not None and self._marks.gradients and not in_backward():
            with self._guard(self.name):
                self._look_at_marked()
        sample = self._sample
        if sample is None or in_backward() or not (sample.alive or not sample.looks):
            return
        with self._guard(self.name):
            sample.alive = [gradient for gradient in sample.alive if gradient.grad is not None]
            if len(sample.looks) < MAX_LOOKS:
                look = Gathered()
                for gradient in sample.alive:
                    view = _view(gradient.param_slice, gradient.grad)
                    look.add(view if view is not None else gradient.param_slice.param.detach().new_zeros(0))
                look.copy()
                sample.looks.append((tuple(sample.alive), look))
            sample.versions = [_num_writes(gradient) for gradient in sample.alive]

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        sample = self._sample
        if sample is None or not sample.versions or in_backward():
            return
        with self._guard(self.name):
            for gradient, before in zip(sample.alive, sample.versions, strict=True):
                gradient.added_to = gradient.added_to or _num_writes(gradient) > before
            sample.versions = ()


def _is_trained(param_slice: ParamSlice, layout: Layout) -> bool:
    return (
        param_slice.param.requires_grad
        and param_slice.param.grad is not None
        and id(param_slice.param) in layout.index_of
    )


def _view(param_slice: ParamSlice, grad: Tensor | None) -> Tensor | None:
    return None if grad is None else param_slice.view(grad)


def _num_writes(gradient: _KeptGradient) -> int:
    """Of the gradient: how often it was written to; -1 where it is gone."""
    grad = gradient.grad
    return -1 if grad is None else _version(grad)


def _version(grad: Tensor) -> int:
    return grad._version if type(grad) is Tensor else getattr(grad, "_local_tensor", grad)._version


def make_probe(parts: ProbeParts) -> KeptGradientProbe:
    """The probe of this law for one watched model."""
    return KeptGradientProbe(parts.guard, rank=parts.rank)
