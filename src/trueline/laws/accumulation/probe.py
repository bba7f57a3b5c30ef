"""Find gradients that are changed between the backward passes that one update adds up.

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
from trueline.capture.model.layout import local
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import NUM_SLICES, Gathered, ParamSlice, slice_in
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts

MAX_GAPS = 2
"""Gaps between backward passes of a step that are looked at, the first ones: later ones tell no more."""

ROUNDINGS = 8
"""Roundings within which elements are a multiple, as for updates (``judge.updates.laws``)."""

Array = NDArray[np.float64]


@dataclass(eq=False)
class _GapSample:
    """Gradients at ``slices`` after some backward passes, before the next ones, and as the update uses them. ``judged``
    are the numbers of slices that this update is of.
    """

    positions: Sequence[int]
    slices: Sequence[ParamSlice]
    units: Sequence[float]
    after_passes: list[Gathered]
    before_passes: list[Gathered]
    at_update: Gathered
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
        self._waiting = Waiting[_GapSample]()
        self._has_several = True
        self._num_passes = 0
        self._switch = patches.Switch()
        self._forget(None)
        patches.backward.add(self._before_backward, switch=self._switch)
        patches.backward.add(self._after_backward, after=True, switch=self._switch)

    def detach(self) -> None:
        self._forget(None)
        patches.backward.remove(self._before_backward)
        patches.backward.remove(self._after_backward)

    def begin(self, step: Step) -> bool:
        due = step.sampled and self._times.due(step)
        # a step without any backward pass says nothing about how many there are
        if self._num_passes:
            self._has_several = self._num_passes > 1
        self._num_passes = 0
        self._forget(step if due else None)
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of the elements, of a step with more than one backward pass."""
        slices, after_passes = self._slices, self._after_passes
        before_passes = self._before_passes[: len(after_passes) - 1]
        at_update = self._look() if before_passes else Gathered()
        self._forget(None)
        if not before_passes or not step.gradients_known:
            return {}
        groups = step.optimizer.param_groups if step.optimizer else []
        held_ids = {id(param) for group in groups for param in group["params"]}
        held_slices = frozenset(
            number for number, param_slice in enumerate(slices) if id(param_slice.param) in held_ids
        )
        positions = [step.layout.index_of.get(id(param_slice.param), -1) for param_slice in slices]
        units = [
            torch.finfo(param_slice.param.grad.dtype).eps / 2 if param_slice.param.grad is not None else 0.0
            for param_slice in slices
        ]
        judged = held_slices or frozenset(range(len(slices)))
        self._waiting.add(
            step.number, _GapSample(positions, slices, units, after_passes, before_passes, at_update, judged)
        )
        tensors = at_update.hand_over("between_used")
        for number, look in enumerate(after_passes):
            tensors |= look.hand_over(f"between_left_{number}")
        for number, look in enumerate(before_passes):
            tensors |= look.hand_over(f"between_found_{number}")
        return tensors

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        sample = self._waiting.take(step.number)
        if sample is None:
            return {}
        after_passes = [_values(look, host) for look in sample.after_passes]
        before_passes = [_values(look, host) for look in sample.before_passes]
        at_update = _values(sample.at_update, host)
        rows: list[float] = [float(len(before_passes))]
        for gap in range(len(before_passes)):
            for number, factor, shrinks in _changed(after_passes, before_passes, at_update, gap, sample):
                rows += [float(sample.positions[number]), float(gap), factor, float(shrinks)]
        return {"changed_between": rows}

    def _forget(self, step: Step | None) -> None:
        self._step = step
        self._switch.set(step is not None)
        self._slices: list[ParamSlice] = []
        self._after_passes: list[Gathered] = []
        self._before_passes: list[Gathered] = []

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        step = self._step
        if step is None or in_backward():
            return
        self._num_passes += 1
        if not self._has_several or len(self._after_passes) > MAX_GAPS:
            return
        with self._guard(self.name), torch.no_grad():
            if not self._after_passes:
                chance = random.Random(step.number)
                params = [param for param in step.layout.params if param.grad is not None]
                chosen_params = chance.sample(params, min(NUM_SLICES, len(params)))
                self._slices = [
                    param_slice
                    for param in chosen_params
                    if (param_slice := slice_in(param, step.layout, chance)) is not None
                ]
            # a pass that was not seen to begin leaves no pair
            if self._slices and len(self._after_passes) == len(self._before_passes):
                self._after_passes.append(self._look())

    def _before_backward(self, *args: Any, **kwargs: Any) -> None:
        if len(self._before_passes) == len(self._after_passes) or len(self._before_passes) == MAX_GAPS or in_backward():
            return
        with self._guard(self.name), torch.no_grad():
            self._before_passes.append(self._look())

    def _look(self) -> Gathered:
        """The gradients as they are; nothing of one that is not there."""
        look = Gathered()
        for param_slice in self._slices:
            view = None if param_slice.param.grad is None else param_slice.view(param_slice.param.grad)
            # of a DTensor an empty one would be another
            look.add(local(param_slice.param.detach()).new_zeros(0) if view is None else view)
        look.copy()
        return look


def _values(look: Gathered, host: Mapping[str, Tensor]) -> list[Array]:
    return [values.numpy() for values in look.values(host)]


def _changed(
    after_passes: Sequence[Sequence[Array]],
    before_passes: Sequence[Sequence[Array]],
    at_update: Sequence[Array],
    gap: int,
    sample: _GapSample,
) -> Iterator[tuple[int, float, bool]]:
    """Of each slice that was changed after the pass of this number and before the next, which added to it: by what one
    factor (NaN: by none), and whether no element grew or changed its sign. Gradients that were all cleared begin anew,
    and those that an earlier pass had left were put back: neither is a change. Nor are elements that are zero at the
    update too, which code keeps from training.
    """
    numbers = [
        n
        for n in sorted(sample.judged)
        if after_passes[gap][n].shape == before_passes[gap][n].shape and after_passes[gap][n].any()
    ]
    if not any(before_passes[gap][n].any() for n in numbers):
        return
    for n in numbers:
        old, new = after_passes[gap][n], before_passes[gap][n]
        next_values, final = after_passes[gap + 1][n], at_update[n]
        if new.shape != next_values.shape or new.shape != final.shape:
            continue
        counts = np.isfinite(old) & np.isfinite(new) & ~((new == 0) & (final == 0))
        unchanged = (
            np.array_equal(new[counts], arrays[n][counts])
            for arrays in after_passes[: gap + 1]
            if arrays[n].shape == new.shape
        )
        if not counts.any() or np.array_equal(new, next_values) or any(unchanged):
            continue
        old, new = old[counts], new[counts]
        shrinks = bool(np.all((old * new >= 0) & (np.abs(new) <= np.abs(old))))
        yield n, _factor(old, new, sample.units[n]), shrinks


def _factor(old_K: Array, new_K: Array, unit: float) -> float:
    """The one number that the elements were multiplied by, up to their rounding; NaN without one."""
    factor = float(old_K @ new_K) / max(float(old_K @ old_K), np.finfo(np.float64).tiny)
    allowed = ROUNDINGS * unit * np.abs(factor * old_K)
    return factor if np.all(np.abs(new_K - factor * old_K) <= allowed) else math.nan


def make_probe(parts: ProbeParts) -> BetweenPassesProbe:
    """The probe of this law for one watched model."""
    return BetweenPassesProbe(parts.guard)
