"""The calls of operations that a Run recorded, as far as they can be made again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trueline.judge.actions import Commands, record_step
from trueline.judge.recorded.step_values import is_returned
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

_COLUMNS = (
    *("step", "rank", "row", "micro", "phase", "name", "call", "slot", "kind", "api", "args", "flags", "dtype"),
    *("shape", "strides", "mesh", "same_as", "numel", "nan", "pos_inf", "neg_inf", "zero", "min", "max", "sum"),
    *("sum_sq", "tensor", "note"),
)
_CUT = 200
"""Elements of a list from which on its description was cut (``capture.record.arguments.MAX_TEXT``)."""


@dataclass(frozen=True)
class RecordedValue:
    """A value of a call: its ``row`` as ``Run.records`` has it, with numbers and key."""

    row: Mapping[str, Any]

    @property
    def slot(self) -> str:
        """Name of the value within its call."""
        return self.row["slot"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as seen."""
        return tuple(self.row["shape"] or ())

    @property
    def strides(self) -> tuple[int, ...] | None:
        """In elements; None: row by row."""
        return None if self.row["strides"] is None else tuple(self.row["strides"])

    @property
    def dtype(self) -> str:
        """Without 'torch.'."""
        return self.row["dtype"]

    @property
    def root(self) -> int:
        """The row of the first sighting of the same tensor."""
        return self.row["row"] if self.row["same_as"] is None else self.row["same_as"]


@dataclass(frozen=True)
class RecordedCall:
    """A call: what it took, what it returned, and the gradients of both that backward had, by slot."""

    step: int
    rank: int
    micro: int
    phase: str
    name: str
    call: int
    kind: str
    api: str
    flags: frozenset[str]
    args: Mapping[str, Any] | None
    inputs: dict[str, RecordedValue] = field(default_factory=dict[str, RecordedValue])
    outputs: dict[str, RecordedValue] = field(default_factory=dict[str, RecordedValue])
    gradients: dict[str, RecordedValue] = field(default_factory=dict[str, RecordedValue])

    @property
    def site(self) -> str:
        """Site of the call, without a slot."""
        return f"{self.step}.{self.micro}/r{self.rank}/{self.phase}/{self.name}#{self.call}"

    @property
    def in_place(self) -> bool:
        """Whether it changes what it was given."""
        return "inplace" in self.flags

    @property
    def signature(self) -> str:
        """The features it has in common with calls that compute the same of other numbers."""
        values = {
            slot: (value.dtype, value.shape, value.strides, slot in self.gradients)
            for slot, value in self.inputs.items()
        }
        return json.dumps([self.api, self.args, values, sorted({output.dtype for output in self.outputs.values()})])

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named, as JSON has them, lists of tensors in full. Raises ``CannotTell`` where they are not
        known.
        """
        if self.args is None:
            raise CannotTell("its arguments were not recorded")
        return [self._whole(argument, f"in{index}") for index, argument in enumerate(self.args["args"])], {
            name: self._whole(argument, name) for name, argument in self.args["kwargs"].items()
        }

    def _whole(self, text: Any, slot: str) -> Any:
        if not isinstance(text, list) or len(text) < _CUT:
            return text
        if any(not isinstance(item, dict) or item.keys() != {"in"} for item in text):
            raise CannotTell(f"its argument {slot} has more elements than were recorded")
        count = 0
        while f"{slot}.{count}" in self.inputs:
            count += 1
        return [{"in": f"{slot}.{index}"} for index in range(count)]


def recorded_calls(run: Run, *, step: int, rank: int) -> list[RecordedCall]:
    """The calls of operations of a recorded step of a rank, in order, collectives among them."""
    rows = run.records(steps=[step], ranks=[rank], columns=_COLUMNS).to_pylist()
    calls: dict[tuple[Any, ...], RecordedCall] = {}
    for row in rows:
        if row["kind"] not in ("op", "collective"):
            continue
        site_key = row["micro"], row["name"], row["call"]
        # a backward row without arguments is the gradient of a value of that forward call, and no call
        if row["phase"] == "bwd" and (forward := calls.get((*site_key, "fwd"))) is not None and row["args"] is None:
            forward.gradients.setdefault(row["slot"], RecordedValue(row))
            continue
        key = (*site_key, row["phase"])
        if key not in calls:
            calls[key] = _call_of(row)
        side = calls[key].outputs if is_returned(row["slot"]) else calls[key].inputs
        side.setdefault(row["slot"], RecordedValue(row))
    return list(calls.values())


def op_steps(run: Run, step: int | None, rank: int | None) -> Iterator[tuple[int, int]]:
    """The recorded steps and ranks to look at: those given, else the first step that has operations, of the lowest
    rank. Raises ``CannotTell`` where no operation was recorded.
    """
    steps = [int(recorded_step) for recorded_step in run.record_steps] if step is None else [step]
    ranks = run.record_ranks[:1] if rank is None else [rank]
    for recorded_step in steps:
        kinds = run.records(steps=[recorded_step], ranks=ranks, columns=["kind"])["kind"].unique().to_pylist()
        if "op" in kinds:
            yield from ((recorded_step, recorded_rank) for recorded_rank in ranks)
            return
    where = "" if step is None and rank is None else " there"
    raise CannotTell(
        f"No operation was recorded{where} in '{run.path}'. Record a step with its inputs: "
        + Commands(run.path, tuple(run.manifest.argv)).filled(record_step(0, "--set depth=tensor"))
    )


def _call_of(row: Mapping[str, Any]) -> RecordedCall:
    flags = frozenset(row["flags"].split(",")) if row["flags"] else frozenset[str]()
    args = None if row["args"] is None else json.loads(row["args"])
    fields = [row[name] for name in ("step", "rank", "micro", "phase", "name", "call", "kind", "api")]
    return RecordedCall(*fields, flags, args)
