"""Calls the probes of one model, each on its own: one that raises is not called again, and the others go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trueline.capture.probes.base import FactProbe, Moment, Probe, Step
from trueline.capture.step.working_parts import WorkingParts
from trueline.schema.columns.workers import WORKER_COLUMNS

_COLUMNS = frozenset(column.name for column in WORKER_COLUMNS)


class Probing:
    """Collects what ``probes`` measure in a step: ``row`` has the columns that need no copy to the host. Which of them
    are asked at which moment is worked out once a step; a moment that none wants costs nothing. Call all of it inside
    of ``WorkingParts.timed``.
    """

    def __init__(self, probes: Sequence[Probe], parts: WorkingParts) -> None:
        self._probes = list(probes)
        self._lively = [probe for probe in probes if probe.between is not None]
        self._parts = parts
        self._wanted: Sequence[tuple[Probe, Collection[Moment]]] = ()
        self._at: dict[Moment, list[Probe]] = {}
        self.due: list[Probe] = []
        """The probes of this step that may make columns of what is copied to the host."""
        self._resting: list[Probe] = []
        parts.let_go = self._let_go

    def begin(self, step: Step) -> None:
        """Begin ``step``, and drop what was measured in the one before."""
        self._step = step
        self.row: dict[str, Any] = {"step": step.number}
        self._taken: dict[str, Tensor] = {}
        if step.sampled:
            wanted = [(probe, probe.moments) for probe in self._probes if self._begins(probe)]
            self._resting = [probe for probe, _ in wanted if probe.between is None]
        else:
            resting, self._resting = self._resting, []
            for probe in resting:
                self._begins(probe)
            wanted = [(probe, probe.between or ()) for probe in self._lively if self._begins(probe)]
        if wanted != self._wanted:
            self._wanted, self._at = wanted, {}
            self.due = [probe for probe, _ in wanted if type(probe).columns is not FactProbe.columns]
            for probe, moments in wanted:
                for moment in moments:
                    self._at.setdefault(moment, []).append(probe)

    def ask(self, moment: Moment, **brings: Any) -> None:
        """Set these fields of the step, and take what probes measure at ``moment``."""
        step = self._step
        vars(step).update(brings)
        if probes := self._at.get(moment):
            with torch.no_grad():
                for probe in probes:
                    try:
                        if found := probe.take(moment, step):
                            self._put(found)
                    except Exception as error:
                        self._parts.end(probe.name, error)
        # They are large, and must not be kept alive.
        step.args, step.kwargs, step.output = (), {}, None

    def ask_last(self) -> list[Probe]:
        """Take what all probes measure as watching ends; those that took anything."""
        took: list[Probe] = []
        with torch.no_grad():
            for probe in (probe for probe in self._probes if "closed" in probe.moments):
                if found := self._parts.attempt(probe.name, probe.take, "closed", self._step):
                    self._parts.attempt(probe.name, self._put, found)
                    took.append(probe)
        return took

    def hand_over(self) -> dict[str, Tensor]:
        """The tensors that were taken since the last call."""
        taken, self._taken = self._taken, {}
        return taken

    def columns(self, probes: Iterable[Probe], host: Mapping[str, Tensor], step: Step, row: dict[str, Any]) -> None:
        """Add to ``row`` of ``step`` the columns that ``probes`` make of the tensors on the ``host``."""
        for probe in probes:
            if self._parts.works(probe.name) and (found := self._columns_of(probe, host, step, row)):
                row |= found

    def _begins(self, probe: Probe) -> bool:
        if type(probe).begin is FactProbe.begin:
            return True
        try:
            return probe.begin(self._step)
        except Exception as error:
            self._parts.end(probe.name, error)
        return False

    def _put(self, found: Mapping[str, Any]) -> None:
        taken, row = self._taken, self.row
        for name, value in found.items():
            if isinstance(value, Tensor):
                taken[name] = value
            else:
                row[name] = value
        if unknown := row.keys() - _COLUMNS:
            for name in unknown:
                del row[name]
            raise _no_column(unknown)

    def _columns_of(
        self, probe: Probe, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        try:
            found = probe.columns(host, step, row)
            if not _COLUMNS.issuperset(found):
                raise _no_column(found.keys() - _COLUMNS)
            return found
        except Exception as error:
            self._parts.end(probe.name, error)
        return {}

    def _let_go(self, part: str) -> None:
        """Make a probe that has failed measure nothing from now on."""
        failed = [probe for probe in self._probes if probe.name == part]
        self._probes = [probe for probe in self._probes if probe.name != part]
        self._lively = [probe for probe in self._lively if probe.name != part]
        self._at = {moment: [one for one in probes if one.name != part] for moment, probes in self._at.items()}
        for probe in failed:
            probe.begin(Step(self._step.number, self._step.layout, self._step.plan, {}))


def _no_column(unknown: Collection[str]) -> KeyError:
    """What is raised for columns that a Sink would refuse the whole row for."""
    return KeyError(f"{', '.join(sorted(unknown))}: no column of trueline.schema.columns.workers")
