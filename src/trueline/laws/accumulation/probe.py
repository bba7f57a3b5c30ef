"""Whether gradients stay as they are between the backward passes that one update adds up.

K elements of one slice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import NUM_SLICES, Gathered, Place, place_in
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts

MAX_GAPS = 2
"""Gaps between backward passes of a step that are looked at, the first ones: later ones tell no more."""

ROUNDINGS = 8
"""Roundings within which elements are a multiple, as for updates (``judge.updates.laws``)."""

Array = NDArray[np.float64]


@dataclass(eq=False)
class _Sample:
    """Gradients at ``places`` as each of some backward passes ``left`` them, as the next one ``found`` them, and as the
    update ``used`` them. ``judged`` are the places of what that update is of.
    """

    positions: Sequence[int]
    places: Sequence[Place]
    units: Sequence[float]
    left: list[Gathered]
    found: list[Gathered]
    used: Gathered
    judged: frozenset[int]


class BetweenPassesProbe:
    """Copies sampled elements of gradients just after a backward pass and just before the next one, by listening to
    ``backward``, unless the sample before had one pass only.
    """

    name = "gradients between passes"
    moments = ("gradients",)
    between = moments

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._times = NowAndThen()
        self._waiting = Waiting[_Sample]()
        self._has_several = True
        self._num_passes = 0
        self._switch = patches.Switch()
        self._forget(None)
        patches.backward.add(self._before_backward, switch=self._switch)
        patches.backward.add(self._after_backward, after=True, switch=self._switch)

    def detach(self) -> None:
        """Stop listening."""
        self._forget(None)
        patches.backward.remove(self._before_backward)
        patches.backward.remove(self._after_backward)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then."""
        due = step.sampled and self._times.due(step)
        if self._num_passes:
            self._has_several = self._num_passes > 1
        self._num_passes = 0
        self._forget(step if due else None)
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of the elements, of a step with more than one backward pass."""
        places, left, found = self._places, self._left, self._found[: len(self._left) - 1]
        used = self._look() if found else Gathered()
        self._forget(None)
        if not found or not step.gradients_known:
            return {}
        of = step.optimizer
        held = {id(param) for group in of.param_groups for param in group["params"]} if of else set[int]()
        mine = frozenset(number for number, place in enumerate(places) if id(place.param) in held)
        positions = [step.layout.index_of.get(id(place.param), -1) for place in places]
        units = [
            torch.finfo(place.param.grad.dtype).eps / 2 if place.param.grad is not None else 0.0 for place in places
        ]
        judged = mine or frozenset(range(len(places)))
        self._waiting.put(step.number, _Sample(positions, places, units, left, found, used, judged))
        tensors = used.hand_over("between_used")
        for number, look in enumerate(left):
            tensors |= look.hand_over(f"between_left_{number}")
        for number, look in enumerate(found):
            tensors |= look.hand_over(f"between_found_{number}")
        return tensors

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``changed_between``."""
        sample = self._waiting.take(step.number)
        if sample is None:
            return {}
        left, found = ([_values(look, host) for look in looks] for looks in (sample.left, sample.found))
        used = _values(sample.used, host)
        rows: list[float] = [float(len(found))]
        for gap in range(len(found)):
            for number, factor, shrinks in _changed(left, found, used, gap, sample):
                rows += [float(sample.positions[number]), float(gap), factor, float(shrinks)]
        return {"changed_between": rows}

    def _forget(self, step: Step | None) -> None:
        self._step = step
        self._switch.set(step is not None)
        self._places: list[Place] = []
        self._left: list[Gathered] = []
        self._found: list[Gathered] = []

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        step = self._step
        if step is None or in_backward():
            return
        self._num_passes += 1
        if not self._has_several or len(self._left) > MAX_GAPS:
            return
        with self._guard(self.name), torch.no_grad():
            if not self._left:
                chance = random.Random(step.number)
                graded = [param for param in step.layout.params if param.grad is not None]
                some = chance.sample(graded, min(NUM_SLICES, len(graded)))
                self._places = [place for param in some if (place := place_in(param, step.layout, chance)) is not None]
            if self._places and len(self._left) == len(self._found):
                self._left.append(self._look())

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        if len(self._found) == len(self._left) or len(self._found) == MAX_GAPS or in_backward():
            return
        with self._guard(self.name), torch.no_grad():
            self._found.append(self._look())

    def _look(self) -> Gathered:
        """The gradients as they are; nothing of one that is not there."""
        look = Gathered()
        for place in self._places:
            view = None if place.param.grad is None else place.of(place.param.grad)
            look.add(place.param.detach().new_zeros(0) if view is None else view)
        look.copy()
        return look


def _values(look: Gathered, host: Mapping[str, Tensor]) -> list[Array]:
    return [values.numpy() for values in look.values(host)]


def _changed(
    left: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]], used: Sequence[Array], gap: int, of: _Sample
) -> Iterator[tuple[int, float, bool]]:
    """Of each place that was changed after the pass of this number and before the next, which added to it: by what one
    factor (NaN: by none), and whether no element grew or changed its sign. Gradients that were all cleared begin anew,
    and those that an earlier pass had left were put back: neither is a change. Nor are elements that are zero at the
    update too, which code keeps from training.
    """
    there = [n for n in sorted(of.judged) if left[gap][n].shape == found[gap][n].shape and left[gap][n].any()]
    if not any(found[gap][n].any() for n in there):
        return
    for n in there:
        old, new, then, last = left[gap][n], found[gap][n], left[gap + 1][n], used[n]
        if new.shape != then.shape or new.shape != last.shape:
            continue
        counts = np.isfinite(old) & np.isfinite(new) & ~((new == 0) & (last == 0))
        same = (np.array_equal(new[counts], each[n][counts]) for each in left[: gap + 1] if each[n].shape == new.shape)
        if not counts.any() or np.array_equal(new, then) or any(same):
            continue
        old, new = old[counts], new[counts]
        shrinks = bool(np.all((old * new >= 0) & (np.abs(new) <= np.abs(old))))
        yield n, _factor(old, new, of.units[n]), shrinks


def _factor(old_K: Array, new_K: Array, unit: float) -> float:
    """The one number that the elements were multiplied by, up to their rounding; NaN without one."""
    factor = float(old_K @ new_K) / max(float(old_K @ old_K), np.finfo(np.float64).tiny)
    allowed = ROUNDINGS * unit * np.abs(factor * old_K)
    return factor if np.all(np.abs(new_K - factor * old_K) <= allowed) else math.nan


def make_probe(parts: ProbeParts) -> BetweenPassesProbe:
    """The probe of this law for one watched model."""
    return BetweenPassesProbe(parts.guard)
