"""The rows of one imported step, one by one, and the ``StepRecords`` that they become.

M measured rows, S statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.schema.columns.records import STAT_NAMES, StepRecords

UNKNOWN: tuple[float, ...] = (math.nan,) * len(STAT_NAMES)


@dataclass(frozen=True)
class Measured:
    """Numbers of one value. ``numel`` counts two for each complex element, as the column does. ``stats_S`` in
    the order of ``STAT_NAMES``, NaN for what is not known and for the extremes where nothing is finite; None: nothing
    is. ``note`` says why it was not measured, or in part.
    """

    numel: int | None = None
    stats_S: Sequence[float] | None = None
    fingerprint: int | None = None
    note: str | None = None


Measure = Callable[[Any], Measured]
"""Measures a ``torch.Tensor`` in host memory; whoever imports hands it in, as ``store`` cannot see ``tensor``."""


@dataclass(frozen=True)
class ValueOwner:
    """The call or parameter that values belong to: the columns that they share. ``micro`` and ``call`` count from 0."""

    phase: str
    name: str
    call: int = 0
    kind: str = ""
    api: str = ""
    module: str = ""
    micro: int = 0
    stack: int | None = None
    flags: str = ""


_COLUMNS = (
    *("micro", "phase", "name", "call", "slot", "kind", "api", "module", "args", "stack", "flags"),
    *("dtype", "shape", "same_as", "numel", "tensor", "note"),
)


def slot_part(text: object) -> str:
    """A key as part of a slot, which has letters, digits, ``_`` and ``.`` only."""
    return "".join(letter if letter.isalnum() else "_" for letter in str(text))


class StepRows:
    """Takes the values of one step in order."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._rows: list[tuple[Any, ...]] = []
        self._measured: dict[int, Measured] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def key(self, owner: ValueOwner, slot: str) -> str:
        """The key under which the value that is added next is to be stored."""
        return f"{owner.micro}.{owner.phase}.{owner.name}#{owner.call}:{slot}/{len(self._rows)}"

    def add(
        self,
        owner: ValueOwner,
        slot: str,
        measured: Measured,
        *,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        args: str | None = None,
        same_as: int | None = None,
        tensor: str | None = None,
    ) -> int:
        """Add a value and return its row. ``same_as``: the row that has its numbers."""
        row = len(self._rows)
        if same_as is None and (measured.stats_S is not None or measured.fingerprint is not None):
            self._measured[row] = measured
        self._rows.append(
            (
                *(owner.micro, owner.phase, owner.name, owner.call, slot, owner.kind, owner.api, owner.module),
                *(args, owner.stack, owner.flags, dtype, None if shape is None else tuple(shape), same_as),
                *(measured.numel, tensor, measured.note),
            )
        )
        return row

    def records(self) -> StepRecords:
        """All rows. Where some have fingerprints, one without counts as not measured."""
        printed = any(measured.fingerprint is not None for measured in self._measured.values())
        measured_rows = {
            row: measured for row, measured in self._measured.items() if measured.fingerprint is not None or not printed
        }
        counted = any(measured.stats_S is not None for measured in measured_rows.values())
        stats = [measured.stats_S or UNKNOWN for measured in measured_rows.values()]
        prints = [measured.fingerprint or 0 for measured in measured_rows.values()]
        return StepRecords(
            step=self.step,
            columns=dict(zip(_COLUMNS, zip(*self._rows, strict=True), strict=True)) if self._rows else {},
            measured_M=np.array(list(measured_rows), dtype=np.int32),
            stats_MS=np.array(stats, dtype=np.float64).reshape(-1, len(STAT_NAMES)) if counted else None,
            fingerprint_M=np.array(prints, dtype=np.uint64) if printed else None,
        )
