"""Record how far the schedules of the learning rate are at each update, and whether they were stepped before it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trueline.capture.model import patches
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.schedule.lengths import description


class ScheduleProbe(FactProbe):
    """The columns ``schedule_epochs``, ``schedule_calls``, ``schedule_rates``, ``schedule_facts`` and
    ``schedule_idle``, by listening to the ``step`` of torch's schedulers: classes with a step of their own are not
    seen. One that was made before and not stepped yet is only known by what it has done to the optimizer.
    """

    name = "schedules"
    moments = ("forward", "update")
    between = moments

    def __init__(self) -> None:
        self._calls = ObjectTable[LRScheduler, _Calls]()
        self._described = ObjectTable[Optimizer, tuple[int, list[int]]]()
        self._num_optimizers = self._num_seen = 0
        self._last_state = (0, 0, 0)
        self._has_forward = False
        for patched in patches.schedules:
            patched.add(self._at_step)

    def detach(self) -> None:
        for patched in patches.schedules:
            patched.remove(self._at_step)

    def begin(self, step: Step) -> bool:
        self._has_forward = False
        return True

    def take(self, moment: Moment, step: Step) -> dict[str, list[int] | list[float] | str]:
        if moment == "forward":
            self._has_forward = True
            for calls in self._calls.values():
                calls.number = 0
            return {}
        optimizer = step.optimizer
        schedulers = [] if optimizer is None else [pair for pair in self._calls.items() if _drives(pair[0], optimizer)]
        if optimizer is None or not schedulers:
            return {"schedule_epochs": []} if _has_one(optimizer) else self._idle(optimizer)
        columns: dict[str, list[int] | list[float] | str] = {}
        if self._has_forward:
            columns["schedule_calls"] = [calls.number for _, calls in schedulers]
        columns["schedule_epochs"] = [int(scheduler.last_epoch) for scheduler, _ in schedulers]
        if len(schedulers) == 1 and (rates := _set_last(schedulers[0][0])):
            columns["schedule_rates"] = rates
        state = id(optimizer), len(schedulers), self._num_seen
        if state != self._last_state:
            self._last_state = state
            columns |= self._describe(optimizer, schedulers)
        return columns

    def _describe(self, optimizer: Optimizer, schedulers: list[tuple[LRScheduler, _Calls]]) -> dict[str, str]:
        """The column ``schedule_facts``, where these schedulers of the optimizer are not those of its last update."""
        described, numbers = self._described.get(optimizer), [calls.schedule for _, calls in schedulers]
        if described is not None and described[1] == numbers:
            return {}
        self._num_optimizers += described is None
        number = self._num_optimizers if described is None else described[0]
        self._described.set(optimizer, (number, numbers))
        facts = {"optimizer": number, "schedules": [description(scheduler) for scheduler, _ in schedulers]}
        return {"schedule_facts": json.dumps(facts)}

    def _idle(self, optimizer: Optimizer | None) -> dict[str, list[int] | list[float] | str]:
        """The column ``schedule_idle``: schedulers mark the ``step`` of their optimizer, to see if it is called."""
        groups = () if optimizer is None else optimizer.param_groups
        for scheduler, _ in self._calls.items() if groups else ():
            driven: Any = getattr(scheduler, "optimizer", None)
            # one that keeps copies in float32 may share single groups
            is_apart = driven is not None and not any(
                group is shared for group in driven.param_groups for shared in groups
            )
            if is_apart and hasattr(driven.step, "_wrapped_by_lr_sched") and not getattr(driven, "_opt_called", False):
                return {"schedule_idle": f"{type(scheduler).__name__} of {type(driven).__name__}"}
        return {}

    def _at_step(self, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        is_first = getattr(scheduler, "_step_count", 0) < 1  # the call that its constructor makes, or it counts none
        calls = self._calls.get(scheduler)
        if calls is None:
            self._num_seen += 1
            calls = _Calls(self._num_seen)
            self._calls.set(scheduler, calls)
        calls.number = 0 if is_first else calls.number + 1


@dataclass(slots=True)
class _Calls:
    """Of the ``step`` of a scheduler, which has the number ``schedule``, since the last forward pass began."""

    schedule: int
    number: int = 0


def _has_one(optimizer: Optimizer | None) -> bool:
    """True if a scheduler was made for it: they mark its step, to see whether it is called."""
    return hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched")


def _set_last(scheduler: LRScheduler) -> list[float]:
    """The rates that it has set last; none where they are not known without waiting for a device."""
    last: Any = getattr(scheduler, "_last_lr", None)
    rates = list(last) if isinstance(last, (list, tuple)) else []
    are_numbers = all(isinstance(rate, (int, float)) for rate in rates)
    return [float(rate) for rate in rates] if are_numbers else []


def _drives(scheduler: LRScheduler, optimizer: Optimizer) -> bool:
    """True if it is of that optimizer, which may be inside of the one that it was given."""
    declared: Any = getattr(scheduler, "optimizer", None)
    return declared is not None and declared.param_groups is optimizer.param_groups


def make_probe(parts: ProbeParts) -> ScheduleProbe:
    """The probe of this law for one watched model."""
    del parts
    return ScheduleProbe()
