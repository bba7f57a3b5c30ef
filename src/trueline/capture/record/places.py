"""Where the values of a step were seen, row by row, as columns; nearly all of it is the same at every step.

A row refers to a ``RowPlace``, which holds what does not change from step to step. Where a step has the same places as
the one before, it has the same columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from trueline.capture.record.calls import Call

MAX_PLACES = 65_536
"""Places that are remembered before all are forgotten."""

_OF_CALL = ("micro", "name", "kind", "api", "module", "stack")
_OF_PLACE = ("phase", "slot", "flags", "dtype", "shape", "numel", "mesh", "note")
_TAKE = {"call": attrgetter("call.index")} | {name: attrgetter(f"call.{name}") for name in _OF_CALL}
_TAKE |= {name: attrgetter(name) for name in _OF_PLACE}


@dataclass(eq=False, slots=True)
class RowPlace:
    """A value of a call, apart from its numbers."""

    call: Call
    phase: str
    slot: str
    dtype: str
    shape: torch.Size
    numel: int | None
    flags: str
    mesh: str | None
    note: str | None


class StepRows:
    """The places of one step's rows; used again for the next step."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], RowPlace] = {}
        self._columns: dict[str, Any] = {}
        self._before: list[RowPlace] = []
        self.begin()

    def begin(self) -> None:
        """A step begins: it has no rows yet."""
        self._rows: list[RowPlace] = []
        self._same_as: list[int | None] = []
        self._texts: dict[str, dict[int, str]] = {"args": {}, "tensor": {}}
        if len(self._known) > MAX_PLACES:
            self._known.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: tuple[Any, ...], *, same_as: int | None) -> None:
        """A row: ``key`` is a ``Call``, phase, slot, dtype, shape, elements or None where it was not measured, flags,
        mesh and note; ``same_as`` is the row that has its numbers.
        """
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = _place(*key)
        call = place.call
        if call.args is not None:
            self._texts["args"][len(self._rows)], call.args = call.args, None
        self._rows.append(place)
        self._same_as.append(same_as)

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


def _place(
    call: Call, phase: str, slot: str, dtype: torch.dtype, shape: torch.Size, numel: int | None, *rest: Any
) -> RowPlace:
    if numel is not None and dtype.is_complex:
        numel *= 2  # a real and an imaginary part each
    return RowPlace(call, phase, slot, str(dtype).removeprefix("torch."), shape, numel, *rest)


def _spread(texts: dict[int, str], num_rows: int) -> tuple[str | None, ...]:
    """A column with these texts at their rows."""
    column: list[str | None] = [None] * num_rows
    for row, text in texts.items():
        column[row] = text
    return tuple(column)
