"""Recorded steps as checks read them: one rank's rows of one step in the order of execution, and which steps hold
values that are not finite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from trueline.analyze.recorded.step_values import is_returned
from trueline.schema.errors import CannotTell
from trueline.schema.site import Site
from trueline.store.reader import Run
from trueline.store.records.record_summary import damaged_records

NAN, POS_INF, NEG_INF = 1, 2, 4
"""Kinds of values that are not finite, as bits."""

_AT_A_TIME = 32
"""Steps that are looked through at a time, which bounds memory."""

_TEXTS = ("micro", "phase", "name", "call", "slot", "kind", "api", "module", "args", "stack", "flags", "dtype")
_NUMBERS = ("shape", "numel", "nan", "pos_inf", "neg_inf", "min", "max")

CallKey = tuple[int, str, str, int]
"""(micro, phase, name, call)."""


class StepRows:
    """The R rows of one recorded step on one rank; every attribute in lower case is a column, a list of length R.

    ``root`` is the index of the row that was measured for a value: rows with one root are sightings of one value.
    ``bad`` are the kinds of values that are not finite in it, as bits; 0 where all are finite or none was measured.
    """

    def __init__(self, run: Run, step: int, rank: int) -> None:
        names = ["row", "same_as", *_TEXTS, *_NUMBERS]
        table = cast(Any, run).records(steps=[step], ranks=[rank], columns=names)
        columns: dict[str, list[Any]] = table.to_pydict()
        self.step, self.rank = step, rank
        self.micro: list[int] = [micro or 0 for micro in columns["micro"]]
        self.phase, self.name, self.slot, self.kind, self.api, self.module, self.flags, self.dtype = (
            _texts(columns[name]) for name in ("phase", "name", "slot", "kind", "api", "module", "flags", "dtype")
        )
        self.call: list[int] = [call or 0 for call in columns["call"]]
        self.args: list[str | None] = columns["args"]
        self.stack: list[int | None] = columns["stack"]
        self.shape: list[tuple[int, ...]] = [tuple(shape or ()) for shape in columns["shape"]]
        self.numel: list[int | None] = columns["numel"]
        self.counts: list[tuple[int, int, int]] = [
            (nan or 0, pos or 0, neg or 0)
            for nan, pos, neg in zip(columns["nan"], columns["pos_inf"], columns["neg_inf"], strict=True)
        ]
        self.min: list[float | None] = columns["min"]
        self.max: list[float | None] = columns["max"]
        place = {row: index for index, row in enumerate(columns["row"])}
        self.root: list[int] = [place.get(same, index) for index, same in enumerate(columns["same_as"])]
        # What a call is to write into was measured before it did; FSDP hides the change from the version of the value.
        unwritten = {self.root[i] for i, slot in enumerate(self.slot) if _TO_WRITE.fullmatch(slot)}
        self.bad: list[int] = [
            0 if root in unwritten else NAN * (nan > 0) | POS_INF * (pos > 0) | NEG_INF * (neg > 0)
            for root, (nan, pos, neg) in zip(self.root, self.counts, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.phase)

    def key(self, index: int) -> CallKey:
        """The call that a row belongs to."""
        return self.micro[index], self.phase[index], self.name[index], self.call[index]

    def is_out(self, index: int) -> bool:
        """Whether a row is of a value that its call returned."""
        return is_returned(self.slot[index])

    def largest(self, index: int) -> float | None:
        """The largest magnitude of the finite numbers of a row; None where none is finite or measured."""
        ends = [abs(end) for end in (self.min[index], self.max[index]) if end is not None and np.isfinite(end)]
        return max(ends, default=None)

    def site(self, index: int) -> str:
        """The Site of a row, as text."""
        micro, phase, name, call = self.key(index)
        return str(Site(self.step, micro, self.rank, phase, name, call, self.slot[index]))


def require_statistics(run: Run) -> None:
    """Raise ``CannotTell`` where nothing was recorded, or no statistics were."""
    if not run.has_records:
        damage = damaged_records(run)
        if damage:
            raise CannotTell(f"no recorded step can be read: {damage}", reason="damaged")
        raise CannotTell(
            "no step was recorded; record some with `trueline run --plan mix -- COMMAND`",
            reason="no-data" if _asked_to_record(run) else "not-recorded",
        )
    for steps in chunks(run.record_steps.tolist()):
        table = cast(Any, run).records(steps=steps, columns=["nan"], resolve=False)
        if table["nan"].null_count < len(table):
            return
    raise CannotTell(
        'the recorded steps have no statistics; record with depth = "stats" or more, as `--plan mix` does',
        reason="not-recorded",
    )


def _asked_to_record(run: Run) -> bool:
    """Whether any Plan of the Run asked for recorded steps."""
    plans = [run.manifest.plan, *(revision.plan for revision in run.manifest.plans)]
    return any(plan.get("preset", "workers") != "workers" for plan in plans)


def nonfinite_steps(run: Run) -> list[int]:
    """The recorded steps, ascending, that may hold more than masks: with a value that is not finite outside of the
    forward pass, or one of a single element that may be a loss, or without any gradient that could tell.

    Raises ``CannotTell`` where nothing was recorded, or no statistics were.
    """
    require_statistics(run)
    found: list[int] = []
    for steps in chunks(run.record_steps.tolist()):
        columns = ["step", "phase", "name", "numel", "nan", "pos_inf", "neg_inf"]
        table = cast(Any, run).records(steps=steps, columns=columns, resolve=False)
        step_R = np.asarray(table["step"].to_numpy(), dtype=np.int64)
        phase_R = np.asarray(table["phase"].to_pylist(), dtype=object)
        counts_R = [np.asarray(table[name].to_numpy(), dtype=np.float64) for name in columns[4:]]
        numel_R = np.asarray(table["numel"].to_numpy(), dtype=np.float64)
        bad_R = np.any([count > 0 for count in counts_R], axis=0)
        name_R = np.asarray(table["name"].to_pylist(), dtype=object)
        backward_R = phase_R == "bwd"
        with_gradient = set(name_R[backward_R].tolist())
        telling_R = bad_R & (phase_R != "fwd")
        for row in np.flatnonzero(bad_R & ~telling_R & (numel_R == 1)).tolist():
            telling_R[row] = name_R[row] in with_gradient
        telling_R |= bad_R & ~np.isin(step_R, np.unique(step_R[backward_R]))
        found += [int(step) for step in np.unique(step_R[telling_R])]
    return found


_TO_WRITE = re.compile(r"out(\.\d.*)?")
"""Slots of the argument ``out``, a tensor or a list of them."""


def _texts(column: Sequence[str | None]) -> list[str]:
    return [text or "" for text in column]


def chunks(steps: Sequence[int]) -> Iterator[Sequence[int]]:
    """``steps`` in stretches that are looked through at a time."""
    for start in range(0, len(steps), _AT_A_TIME):
        yield steps[start : start + _AT_A_TIME]
