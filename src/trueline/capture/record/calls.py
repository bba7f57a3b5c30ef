"""The calls of a step: the Plan's selection of them, and the values of each, row by row.

A call that is made again at the next step is the same object, and so are the facts of each of its rows: where a step
has the same rows as the one before, it has the same columns.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from trueline.capture.model.untraced import in_backward
from trueline.schema.plan import Plan

MAX_CALLS = 65_536
"""Calls in the cache, which is cleared when it holds more: a step has thousands, and a job may never repeat one."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module or operator: the columns that all of its rows share."""

    micro: int
    phase: str
    name: str
    index: int
    kind: str
    api: str = ""
    module: str = ""
    stack: int | None = None
    flags: str = ""
    args: str | None = None
    """Arguments at this step, taken by the first of the call's rows."""


class Calls:
    """Counts the calls of one step by name. ``micro`` is the micro-batch that runs, -1 before the first."""

    def __init__(self) -> None:
        self.micro = -1
        self._calls: dict[tuple[Any, ...], Call] = {}
        self._counts: dict[str, int] = {}
        self._num_loose = 0

    def begin(self) -> None:
        self.micro = -1
        self._num_loose = 0
        self._counts.clear()
        if len(self._calls) > MAX_CALLS:
            self._calls.clear()

    def next(
        self,
        phase: str,
        name: str,
        kind: str,
        api: str = "",
        module: str = "",
        stack: int | None = None,
        flag: str = "",
    ) -> Call:
        """The next call of ``name``, with the flags that follow from the state of autograd, and ``flag``."""
        flags = "" if torch.is_grad_enabled() or phase not in ("fwd", "save") else "no_grad"
        if phase == "fwd" and in_backward():
            flags = "recomputed"
        return self._next(max(self.micro, 0), phase, name, kind, api, module, stack, flagged(flags, flag))

    def loose(self, phase: str, name: str, api: str, stack: int | None, flag: str) -> Call:
        """A call outside of all modules, which ``numbered`` gives a number later."""
        flags = flagged("" if torch.is_grad_enabled() else "no_grad", flag)
        self._num_loose += 1
        return self._cached(("", self._num_loose), max(self.micro, 0), phase, name, -1, "op", api, "", stack, flags)

    def numbered(self, call: Call, *, micro: int | None) -> Call:
        """The call that a loose one is, in the forward phase of ``micro``, or with None where it was made."""
        phase, micro = (call.phase, call.micro) if micro is None else ("fwd", micro)
        flags = call.flags if phase == "fwd" else call.flags.removeprefix("no_grad").removeprefix(",")
        return self._next(micro, phase, call.name, call.kind, call.api, call.module, call.stack, flags)

    def _next(self, micro: int, phase: str, name: str, *rest: Any) -> Call:
        counted = f"{micro}/{phase}/{name}"  # a string, as Python's garbage collector does not track those
        index = self._counts.get(counted, 0)
        self._counts[counted] = index + 1
        return self._cached(counted, micro, phase, name, index, *rest)

    def _cached(self, counted: Any, micro: int, phase: str, name: str, index: int, *rest: Any) -> Call:
        key = (counted, phase, name, index, *rest, micro)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = Call(micro, phase, name, index, *rest)
        return call


def flagged(flags: str, flag: str) -> str:
    """Column ``flags`` with one more; '' adds none."""
    return f"{flags},{flag}" if flags and flag else flags or flag


MAX_ROW_FACTS = 65_536
"""Rows in the cache, which is cleared when it holds more."""

_OF_CALL = ("micro", "name", "kind", "api", "module", "stack")
_OF_ROW = ("phase", "slot", "flags", "dtype", "shape", "numel", "mesh", "note", "strides")
_TAKE = {"call": attrgetter("call.index")} | {name: attrgetter(f"call.{name}") for name in _OF_CALL}
_TAKE |= {name: attrgetter(name) for name in _OF_ROW}


@dataclass(eq=False, slots=True)
class RowFacts:
    """Columns of one row, a value of a call, without its statistics."""

    call: Call
    phase: str
    slot: str
    dtype: str
    shape: torch.Size
    numel: int | None
    flags: str
    mesh: str | None
    note: str | None
    strides: tuple[int, ...] | None


class StepRows:
    """The rows of one step without their statistics; used again for the next step."""

    def __init__(self) -> None:
        self._row_facts: dict[tuple[Any, ...], RowFacts] = {}
        self._columns: dict[str, Any] = {}
        self._before: list[RowFacts] = []
        self.begin()

    def begin(self) -> None:
        self._rows: list[RowFacts] = []
        self._same_as: list[int | None] = []
        self._texts: dict[str, dict[int, str]] = {"args": {}, "tensor": {}}
        if len(self._row_facts) > MAX_ROW_FACTS:
            self._row_facts.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: tuple[Any, ...], *, same_as: int | None) -> None:
        """A row: ``key`` is a ``Call``, phase, slot, dtype, shape, elements or None where it was not measured, flags,
        mesh, note and strides (None: row by row); ``same_as`` is the row that has its numbers.
        """
        facts = self._row_facts.get(key)
        if facts is None:
            facts = self._row_facts[key] = _facts_of(*key)
        call = facts.call
        if call.args is not None:
            self._texts["args"][len(self._rows)], call.args = call.args, None
        self._rows.append(facts)
        self._same_as.append(same_as)

    def settle(self, final: Mapping[Call, Call | None]) -> dict[int, int]:
        """Put other calls in the place of those in ``final``, and drop the rows of those for which there is None. The
        numbers of a row that is dropped go to the first that is the same as it. Returns the new index of each row that
        has numbers, by its old one.
        """
        rows, same_as, new_index, new_row = [], [], {}, dict[int, int]()
        for old, (facts, source) in enumerate(zip(self._rows, self._same_as, strict=True)):
            call = final.get(facts.call, facts.call)
            if call is None:
                continue
            new_index[old] = len(rows)
            first = new_row.setdefault(old if source is None else source, len(rows))
            same_as.append(None if first == len(rows) else first)
            rows.append(facts if call is facts.call else self._moved_to(call, facts))
        texts = {
            name: {new_index[row]: text for row, text in column.items() if row in new_index}
            for name, column in self._texts.items()
        }
        texts["tensor"] = {new_row[row]: text for row, text in self._texts["tensor"].items() if row in new_row}
        self._rows, self._same_as, self._texts = rows, same_as, texts
        return new_row

    def _moved_to(self, call: Call, facts: RowFacts) -> RowFacts:
        """``facts`` as of a row of ``call``."""
        phase = call.phase if facts.phase == facts.call.phase else facts.phase
        key = (call, facts, phase)
        cached = self._row_facts.get(key)
        if cached is None:
            flags = flagged(call.flags, "pending_sum" if "pending_sum" in facts.flags else "")
            cached = self._row_facts[key] = replace(facts, call=call, phase=phase, flags=flags)
        return cached

    def stored(self, row: int, key: str) -> None:
        """The value of a row is stored under ``key``."""
        self._texts["tensor"][row] = key

    def columns(self) -> dict[str, Any]:
        """Columns of equal length; one that equals that of the step before is the same object."""
        columns: dict[str, Any] = {"same_as": tuple(self._same_as)}
        columns |= {name: _spread(texts, len(self._rows)) for name, texts in self._texts.items()}
        if self._rows == self._before:
            columns |= {name: self._columns[name] for name in _TAKE}
        else:
            columns |= {name: tuple(map(take, self._rows)) for name, take in _TAKE.items()}
        for name, values in columns.items():
            if self._columns.get(name) == values:
                columns[name] = self._columns[name]
        self._before, self._columns = self._rows, columns
        return columns


def _facts_of(
    call: Call, phase: str, slot: str, dtype: torch.dtype, shape: torch.Size, numel: int | None, *rest: Any
) -> RowFacts:
    if numel is not None and dtype.is_complex:
        numel *= 2  # a real and an imaginary part each
    return RowFacts(call, phase, slot, str(dtype).removeprefix("torch."), shape, numel, *rest)


def _spread(texts: dict[int, str], num_rows: int) -> tuple[str | None, ...]:
    """A column with these texts at their rows."""
    column: list[str | None] = [None] * num_rows
    for row, text in texts.items():
        column[row] = text
    return tuple(column)


class Selection:
    """Selects by phase, by globs over names, and by the range ``between`` two calls. Caches its decisions by name."""

    def __init__(self, plan: Plan) -> None:
        self._plan_phases = plan.phases
        self.phases = frozenset(plan.phases) | {"save"}
        self._begun_phases = self.phases | ({"fwd"} if "bwd" in self.phases else frozenset())
        self._steps, self._interval = plan.steps, 1 if plan.preset == "monitor" else plan.every or 1
        self._globs = plan.names
        self._range = plan.between
        self._is_wanted: dict[str, bool] = {}
        self.begin()

    def wants_step(self, step: int) -> bool:
        """True if ``step`` is one of those that the Plan asks for."""
        first, end = self._steps
        return first <= step and (end is None or step < end) and (step - first) % self._interval == 0

    def nothing_of(self, step: int) -> str:
        """Note for a ``step`` of which no call was chosen."""
        return (
            f"Nothing of step {step} has one of the names {list(self._globs)} in the phases {list(self._plan_phases)}: "
            "nothing was recorded."
        )

    def begin(self) -> None:
        """Begin a step: the first call of the range ``between`` has not been made yet."""
        self._inside = self._range is None

    def wants(self, name: str) -> bool:
        """True if the name matches one of the Plan's globs."""
        is_wanted = self._is_wanted.get(name)
        if is_wanted is None:
            is_wanted = self._is_wanted[name] = any(fnmatch.fnmatchcase(name, glob) for glob in self._globs)
        return is_wanted

    def wants_module(self, name: str) -> bool:
        """True if anything of the forward pass of a module is recorded, or it may end the range ``between``."""
        return self._range is not None or ("fwd" in self._begun_phases and self.wants(name))

    def enters(self, phase: str, name: str) -> bool:
        """True if a call that begins now is recorded, or in phase fwd only its gradients; it may be the first of the
        range.
        """
        if self._range is not None and not self._inside and fnmatch.fnmatchcase(name, self._range[0]):
            self._inside = True
        return self._inside and phase in self._begun_phases and self.wants(name)

    def leaves(self, name: str) -> None:
        """Take note that a call has ended; it may be the last of the range."""
        if self._range is not None and self._inside and fnmatch.fnmatchcase(name, self._range[1]):
            self._inside = False
