"""Where the schedules of the learning rate are at each update, and whether they have been stepped before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trueline.capture.model import patches
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.parts import ProbeParts


class ScheduleProbe(FactProbe):
    """The columns ``schedule_epochs``, ``schedule_calls`` and ``schedule_rates``, by listening to the ``step`` of
    torch's schedulers: classes with a step of their own are not seen. One that was made before and not stepped yet is
    only known by what it has done to the optimizer.
    """

    name = "schedules"
    moments = ("forward", "update")
    between = moments

    def __init__(self) -> None:
        self._calls = ObjectTable[LRScheduler, _Calls]()
        self._has_forward = False
        for each in patches.schedules:
            each.add(self._at_step)

    def detach(self) -> None:
        """Stop listening."""
        for each in patches.schedules:
            each.remove(self._at_step)

    def begin(self, step: Step) -> bool:
        """True: calls come at any time."""
        self._has_forward = False
        return True

    def take(self, moment: Moment, step: Step) -> dict[str, list[int] | list[float]]:
        """The columns, just before the update."""
        if moment == "forward":
            self._has_forward = True
            for calls in self._calls.values():
                calls.number = 0
            return {}
        optimizer = step.optimizer
        of = [] if optimizer is None else [each for each in self._calls.items() if _drives(each[0], optimizer)]
        if not of:
            return {"schedule_epochs": []} if _has_one(optimizer) else {}
        columns: dict[str, list[int] | list[float]] = {}
        if self._has_forward:
            columns["schedule_calls"] = [calls.number for _, calls in of]
        columns["schedule_epochs"] = [int(scheduler.last_epoch) for scheduler, _ in of]
        if len(of) == 1 and (rates := _set_last(of[0][0])):
            columns["schedule_rates"] = rates
        return columns

    def _at_step(self, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        made = getattr(scheduler, "_step_count", 0) < 1  # the call that its constructor makes, or it counts none
        calls = self._calls.get(scheduler)
        if calls is None:
            calls = _Calls()
            self._calls.set(scheduler, calls)
        calls.number = 0 if made else calls.number + 1


@dataclass(slots=True)
class _Calls:
    """Of the ``step`` of a scheduler since the last forward pass began."""

    number: int = 0


def _has_one(optimizer: Optimizer | None) -> bool:
    """Whether a scheduler was made for it: they mark its step, to see whether it is called."""
    return hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched")


def _set_last(scheduler: LRScheduler) -> list[float]:
    """The rates that it has set last; none where they are not known without waiting for a device."""
    last: Any = getattr(scheduler, "_last_lr", None)
    rates = list(last) if isinstance(last, (list, tuple)) else []
    plain = all(isinstance(each, (int, float)) for each in rates)
    return [float(each) for each in rates] if plain else []


def _drives(scheduler: LRScheduler, optimizer: Optimizer) -> bool:
    """Whether it is of that optimizer, which may be inside of the one that it was given."""
    given: Any = getattr(scheduler, "optimizer", None)
    return given is not None and given.param_groups is optimizer.param_groups


def make_probe(parts: ProbeParts) -> ScheduleProbe:
    """The probe of this law for one watched model."""
    del parts
    return ScheduleProbe()
