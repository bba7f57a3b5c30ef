"""Calls the probes of one model, each on its own: one that raises is not called again, and the others go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trueline.capture.probes.base import Moment, Probe, Step
from trueline.capture.step.working_parts import WorkingParts
from trueline.schema.columns.workers import WORKER_COLUMNS

_COLUMNS = {column.name for column in WORKER_COLUMNS}


class Probing:
    """Collects what ``probes`` measure in a step: ``row`` has the columns that need no copy to the host."""

    def __init__(self, probes: Sequence[Probe], parts: WorkingParts) -> None:
        self._probes = probes
        self._parts = parts
        parts.let_go = self._let_go

    def begin(self, step: Step) -> None:
        """Begin ``step``, and drop what was measured in the one before."""
        self._step = step
        self.row: dict[str, Any] = {"step": step.number}
        self._taken: dict[str, Tensor] = {}
        with self._parts.timed():
            self.due = [probe for probe in self._probes if self._parts.works(probe.name) and self._begins(probe)]

    def ask(self, moment: Moment, **brings: Any) -> None:
        """Set these fields of the step, and take what probes measure at ``moment``."""
        for name, value in brings.items():
            setattr(self._step, name, value)
        with self._parts.timed(), torch.no_grad():
            for probe in self.due:
                if moment in probe.moments:
                    self._taken |= self._take(probe, moment)
        # They are large, and must not be kept alive.
        self._step.args, self._step.kwargs, self._step.output = (), {}, None

    def ask_last(self) -> dict[str, Tensor]:
        """The tensors that all probes take as watching ends; ``due`` are then the probes that took any."""
        with torch.no_grad():
            asked = [(probe, self._take(probe, "closed")) for probe in self._probes if "closed" in probe.moments]
        self.due = [probe for probe, tensors in asked if tensors]
        return {name: tensor for _, tensors in asked for name, tensor in tensors.items()}

    def hand_over(self) -> dict[str, Tensor]:
        """The tensors that were taken since the last call."""
        taken, self._taken = self._taken, {}
        return taken

    def columns(self, probes: Iterable[Probe], host: Mapping[str, Tensor], step: Step, row: dict[str, Any]) -> None:
        """Add to ``row`` of ``step`` the columns that ``probes`` make of the tensors on the ``host``."""
        with self._parts.timed():
            for probe in (each for each in probes if self._parts.works(each.name)):
                with self._parts.losing(probe.name):
                    row |= _known(probe.columns(host, step, row))

    def _begins(self, probe: Probe) -> bool:
        with self._parts.losing(probe.name):
            return probe.begin(self._step)
        return False

    def _take(self, probe: Probe, moment: Moment) -> dict[str, Tensor]:
        if self._parts.works(probe.name):
            with self._parts.losing(probe.name):
                found = probe.take(moment, self._step)
                if not found:
                    return {}
                tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
                self.row |= _known({name: value for name, value in found.items() if name not in tensors})
                return tensors
        return {}

    def _let_go(self, part: str) -> None:
        """Make a probe that has failed measure nothing from now on."""
        for probe in self._probes:
            if probe.name == part:
                probe.begin(Step(self._step.number, self._step.layout, self._step.plan, {}))


def _known(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """``found``, if all of it are columns of the workers table; else raises KeyError, where a Sink would refuse the
    whole row.
    """
    if unknown := found.keys() - _COLUMNS:
        raise KeyError(f"{', '.join(sorted(unknown))}: no column of trueline.schema.columns.workers")
    return found
