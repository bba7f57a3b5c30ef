"""Calls the probes of one model, each on its own: one that raises is not called again, and the others go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueline.capture.probes.base import FactProbe, Moment, Probe, Step
from trueline.capture.step.working_parts import WorkingParts
from trueline.schema.columns.table import column_names

_Begin = Callable[[Step], bool]


class _Plan(NamedTuple):
    """``at`` has the probes to ask, by moment; ``due`` are those of which columns may come."""

    at: Mapping[Moment, Sequence[Probe]]
    due: Sequence[Probe]


class Probing:
    """Collects what ``probes`` measure in a step: ``row`` has the columns that need no copy to the host. Which of them
    are asked at which moment is worked out once for each choice of probes that begin; a moment that none wants costs
    nothing. Call all of it inside of ``WorkingParts.timed``.
    """

    def __init__(self, probes: Sequence[Probe], parts: WorkingParts) -> None:
        self._probes = list(probes)
        self._parts = parts
        self._column_names = column_names()
        self._beginning = _beginning(self._probes)
        self._moments_between: list[tuple[Probe, Collection[Moment]]] = []
        self._beginning_between = _beginning(())
        self._resting: list[Probe] = []
        self._was_sampled = True
        self._plans: dict[tuple[bool, int], _Plan] = {}
        self._plan = _Plan({}, ())
        parts.let_go = self._let_go

    @property
    def due(self) -> Sequence[Probe]:
        """The probes of this step that may make columns of what is copied to the host."""
        return self._plan.due

    def begin(self, step: Step) -> None:
        """Begin ``step``, and drop what was measured in the one before."""
        self._step = step
        self.row: dict[str, Any] = {"step": step.number}
        self._tensors: dict[str, Tensor] = {}
        sampled = step.sampled
        if self._was_sampled and not sampled:
            self._rest()
        self._was_sampled = sampled
        begins = 0
        for bit, probe, begin in self._beginning if sampled else self._beginning_between:
            try:
                if begin(step):
                    begins |= bit
            except Exception as error:
                self._parts.end(probe.name, error)
        plan = self._plans.get((sampled, begins))
        if plan is None:
            plan = self._plans[sampled, begins] = self._planned(begins, sampled=sampled)
        self._plan = plan
        if sampled:
            self._resting = [probe for bit, probe, _ in self._beginning if begins & bit and probe.between is None]

    def _rest(self) -> None:
        """The first step after one that was sampled: probes of such steps alone forget, and the others say when they
        are asked.
        """
        resting, self._resting = self._resting, []
        for probe in resting:
            self._parts.attempt(probe.name, probe.begin, self._step)
        moments_between = [(probe, moments) for probe in self._probes if (moments := probe.between) is not None]
        if moments_between != self._moments_between:
            self._moments_between = moments_between
            self._beginning_between = _beginning([probe for probe, _ in moments_between])
            self._plans = {key: plan for key, plan in self._plans.items() if key[0]}

    def _planned(self, begins: int, *, sampled: bool) -> _Plan:
        candidates = [(probe, probe.moments) for probe in self._probes] if sampled else self._moments_between
        beginning = self._beginning if sampled else self._beginning_between
        idle = {id(probe) for bit, probe, _ in beginning if not begins & bit}
        at = defaultdict[Moment, list[Probe]](list)
        due: list[Probe] = []
        for probe, moments in candidates:
            if moments and id(probe) not in idle:
                for moment in moments:
                    at[moment].append(probe)
                if type(probe).columns is not FactProbe.columns:
                    due.append(probe)
        return _Plan(dict(at), due)

    def ask(self, moment: Moment, **brings: Any) -> None:
        """Set these fields of the step, and take what probes measure at ``moment``."""
        step = self._step
        step.__dict__.update(brings)
        probes = self._plan.at.get(moment)
        if probes is not None:
            is_enabled = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)  # what torch.no_grad does, in some calls of Python more
            try:
                for probe in probes:
                    try:
                        if measured := probe.take(moment, step):
                            self._add(measured)
                    except Exception as error:
                        self._parts.end(probe.name, error)
            finally:
                torch._C._set_grad_enabled(is_enabled)
        # They are large, and must not be kept alive.
        step.args, step.kwargs, step.output = (), {}, None

    def ask_last(self) -> list[Probe]:
        """Take what all probes measure as watching ends; those that took anything."""
        took: list[Probe] = []
        with torch.no_grad():
            for probe in (probe for probe in self._probes if "closed" in probe.moments):
                if measured := self._parts.attempt(probe.name, probe.take, "closed", self._step):
                    self._parts.attempt(probe.name, self._add, measured)
                    took.append(probe)
        return took

    def hand_over(self) -> dict[str, Tensor]:
        """The tensors that were taken since the last call."""
        tensors, self._tensors = self._tensors, {}
        return tensors

    def columns(self, probes: Iterable[Probe], host: Mapping[str, Tensor], step: Step, row: dict[str, Any]) -> None:
        """Add to ``row`` of ``step`` the columns that ``probes`` make of the tensors on the ``host``."""
        for probe in probes:
            if self._parts.works(probe.name) and (measured := self._columns_of(probe, host, step, row)):
                row |= measured

    def _add(self, measured: Mapping[str, Any]) -> None:
        tensors, row = self._tensors, self.row
        unknown: tuple[str, ...] = ()
        for name, value in measured.items():
            if isinstance(value, Tensor):
                tensors[name] = value
            elif name in self._column_names:
                row[name] = value
            else:
                unknown = (*unknown, name)
        if unknown:
            raise _no_column(unknown)

    def _columns_of(
        self, probe: Probe, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        try:
            columns = probe.columns(host, step, row)
            if not self._column_names.issuperset(columns):
                raise _no_column(columns.keys() - self._column_names)
            return columns
        except Exception as error:
            self._parts.end(probe.name, error)
        return {}

    def _let_go(self, part: str) -> None:
        """Make a probe that has failed measure nothing from now on."""
        failed = [probe for probe in self._probes if probe.name == part]
        self._probes = [probe for probe in self._probes if probe.name != part]
        self._moments_between = [entry for entry in self._moments_between if entry[0].name != part]
        self._beginning = [entry for entry in self._beginning if entry[1].name != part]
        self._beginning_between = [entry for entry in self._beginning_between if entry[1].name != part]
        at = {moment: [probe for probe in probes if probe.name != part] for moment, probes in self._plan.at.items()}
        due = [probe for probe in self._plan.due if probe.name != part]
        self._plans, self._plan = {}, _Plan(at, due)
        for probe in failed:
            probe.begin(Step(self._step.number, self._step.layout, self._step.plan, {}))


def _beginning(probes: Iterable[Probe]) -> list[tuple[int, Probe, _Begin]]:
    """(bit, probe, its ``begin``) of the probes that choose the steps in which they are asked."""
    choosing = [probe for probe in probes if type(probe).begin is not FactProbe.begin]
    return [(1 << index, probe, probe.begin) for index, probe in enumerate(choosing)]


def _no_column(unknown: Collection[str]) -> KeyError:
    """The error for columns for which a Sink would refuse the whole row."""
    return KeyError(f"{', '.join(sorted(unknown))}: no column of the workers table, nor of an installed law")
