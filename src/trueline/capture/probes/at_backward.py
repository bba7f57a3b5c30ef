"""What probes have in common that look at the backward passes of steps which are sampled now and then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.probes.around_update.sampling import NowAndThen
from trueline.capture.probes.base import Step
from trueline.capture.step.passes import Contributions


class BackwardProbe(ABC):
    """Is due at the first sampled steps, then now and then, and is called where a backward pass begins."""

    def __init__(self, guard: Guard, passes: Contributions) -> None:
        self._guard, self._passes = guard, passes
        self._times = NowAndThen()
        self._switch = patches.Switch()
        self._forget(due=False)
        patches.backward.add(self._at_backward, switch=self._switch)

    def begin(self, step: Step) -> bool:
        self._forget(due=step.sampled and self._times.due(step))
        return self._due

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        self._forget(due=False)

    @abstractmethod
    def _forget(self, *, due: bool) -> None:
        """Keep nothing of the step before; whether to look at what comes."""
        self._due = due
        self._switch.set(due)

    @abstractmethod
    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        """A backward pass from these tensors begins."""
