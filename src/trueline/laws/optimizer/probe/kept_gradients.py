"""Whether the gradients that an update has used were cleared before more are added to them."""

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
    Place,
    num_slices,
    place_in,
    places_of,
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
class _Kept:
    """A gradient as an update left it: elements at ``place``, ``of`` by ``id``. ``added_to`` is whether a backward pass
    has added to it since.
    """

    place: Place
    of: int
    added_to: bool = False

    @property
    def there(self) -> Tensor | None:
        """The gradient, if it is still the same tensor."""
        grad = self.place.param.grad
        return grad if grad is not None and id(grad) == self.of else None


@dataclass(eq=False)
class _Sample:
    """Gradients as the update before ``step`` left them, and looks at them before its backward passes: what was copied,
    and of which of ``kept``. ``versions`` are those before the backward pass that runs.
    """

    step: int
    positions: Mapping[int, int]
    kept: list[_Kept]
    left: Gathered
    looks: list[tuple[Sequence[_Kept], Gathered]] = field(default_factory=list[tuple[Sequence[_Kept], Gathered]])
    alive: list[_Kept] = field(default_factory=list[_Kept])
    versions: Sequence[int] = ()
    by_mark: bool = False


class _Marks(NamedTuple):
    """Gradients as the update before a step left them: where they are, which they are by ``id``, and how often each was
    written to until then.
    """

    gradients: list[tuple[Place, int, int]]
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
        self._sample: _Sample | None = None
        self._waiting = Waiting[_Sample]()
        self._step: Step | None = None
        self._marks: _Marks | None = None
        self._places: list[Place] = []
        self._marked_of: Layout | None = None
        self._marked_by: Any = None
        self._num_cleared_unseen = 0
        self._switch = patches.Switch()
        patches.backward.add(self._before_backward, switch=self._switch)
        patches.backward.add(self._after_backward, after=True, switch=self._switch)

    def detach(self) -> None:
        """Stop listening."""
        self._sample = self._marks = self._step = self._marked_of = self._marked_by = None
        self._places = []
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
        if marks is not None and marks.optimizer is not step.optimizer:
            self._sample = None
        sample, self._sample = self._sample, None
        if sample is None or not sample.looks:
            return {}
        used = (
            {id(param) for group in step.optimizer.param_groups for param in group["params"]} if step.optimizer else ()
        )
        sample.alive = [
            one
            for one in sample.alive
            if one.there is not None and one.added_to and (not used or id(one.place.param) in used)
        ]
        self._waiting.put(step.number, sample)
        if not sample.alive:
            return {}
        found = sample.left.hand_over("kept")
        for number, (_, look) in enumerate(sample.looks):
            found |= look.hand_over(f"kept_{number}")
        return found

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``kept_gradients``."""
        sample = self._waiting.take(step.number)
        if sample is None:
            return {}
        alive = set(sample.alive) if any(name.startswith("kept") for name in host) else set[_Kept]()
        if alive:
            left = dict(zip(sample.kept, sample.left.values(host), strict=True))
            for number, (of, look) in enumerate(sample.looks):
                for one, values in zip(of, look.values(host), strict=True):
                    same = values.equal(left[one]) if number == 0 else True
                    if not (same and bool(values.any())):
                        alive.discard(one)
        if sample.by_mark and not alive:
            self._num_cleared_unseen += 1
            return {}
        return {"kept_gradients": sorted(sample.positions[id(one.place.param)] for one in alive)}

    def _of_update(self, step: Step) -> _Sample | None:
        """Sampled elements of the gradients that the update leaves; None where none are to be seen."""
        optimizer, layout = step.optimizer, step.layout
        if optimizer is None:
            return None
        places, self._next_param = places_of(
            optimizer, layout, first=self._next_param, num=num_slices(step.age), random=random.Random(step.number)
        )
        found = {id(place.param): place for place in places}  # one a parameter
        left, kept = Gathered(), list[_Kept]()
        for place in found.values():
            view = _view(place, place.param.grad) if _is_trained(place, layout) else None
            if view is not None:
                left.add(view)
                kept.append(_Kept(place, id(place.param.grad)))
        if not kept:
            return None
        left.copy()
        return _Sample(step.number + 1, layout.index_of, kept, left, alive=list(kept))

    def _mark(self, before: Step) -> _Marks | None:
        """The gradients that the update of the step ``before`` has left, of a few parameters that it was of."""
        optimizer, layout = before.optimizer, before.layout
        if optimizer is None or not before.gradients_known or self._num_cleared_unseen >= MAX_CLEARED_UNSEEN:
            return None
        if layout is not self._marked_of or optimizer is not self._marked_by:
            self._marked_of, self._marked_by = layout, optimizer
            held = {id(param) for group in optimizer.param_groups for param in group["params"]}
            params = [param for param in layout.params if id(param) in held]
            some = params[:: -max(1, len(params) // NUM_MARKED)][:NUM_MARKED]
            chance = random.Random(before.number)
            self._places = [place for param in some if (place := place_in(param, layout, chance)) is not None]
        marked = [
            (place, id(grad), _version_of(grad))
            for place in self._places
            if (grad := place.param.grad) is not None and place.param.requires_grad
        ]
        return _Marks(marked, optimizer) if marked else None

    def _look_at_marked(self) -> None:
        """Make a sample of the marked gradients, if any is there as the update has left it."""
        marks, step = self._marks, self._step
        if marks is None or step is None:
            return
        same = [
            _Kept(place, of)
            for place, of, version in marks.gradients
            if (grad := place.param.grad) is not None and id(grad) == of and _version_of(grad) == version
        ]
        marks.gradients.clear()
        if not same:  # as they were cleared
            return
        left, kept = Gathered(), list[_Kept]()
        for one in same:
            view = _view(one.place, one.there)
            if view is not None:
                left.add(view)
                kept.append(one)
        if kept:
            left.copy()
            index_of = step.layout.index_of
            self._sample = _Sample(step.number, index_of, kept, left, alive=list(kept), by_mark=True)

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        if self._marks is not None and self._marks.gradients and not in_backward():
            with self._guard(self.name):
                self._look_at_marked()
        sample = self._sample
        if sample is None or in_backward() or not (sample.alive or not sample.looks):
            return
        with self._guard(self.name):
            sample.alive = [one for one in sample.alive if one.there is not None]
            if len(sample.looks) < MAX_LOOKS:
                look = Gathered()
                for one in sample.alive:
                    view = _view(one.place, one.there)
                    look.add(view if view is not None else one.place.param.detach().new_zeros(0))
                look.copy()
                sample.looks.append((tuple(sample.alive), look))
            sample.versions = [_version(one) for one in sample.alive]

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        sample = self._sample
        if sample is None or not sample.versions or in_backward():
            return
        with self._guard(self.name):
            for one, before in zip(sample.alive, sample.versions, strict=True):
                one.added_to = one.added_to or _version(one) > before
            sample.versions = ()


def _is_trained(place: Place, layout: Layout) -> bool:
    return place.param.requires_grad and place.param.grad is not None and id(place.param) in layout.index_of


def _view(place: Place, grad: Tensor | None) -> Tensor | None:
    return None if grad is None else place.of(grad)


def _version(one: _Kept) -> int:
    """Of the gradient: how often it was written to; -1 where it is gone."""
    grad = one.there
    return -1 if grad is None else _version_of(grad)


def _version_of(grad: Tensor) -> int:
    return grad._version if type(grad) is Tensor else getattr(grad, "_local_tensor", grad)._version


def make_probe(parts: ProbeParts) -> KeptGradientProbe:
    """The probe of this law for one watched model."""
    return KeptGradientProbe(parts.guard, rank=parts.rank)
