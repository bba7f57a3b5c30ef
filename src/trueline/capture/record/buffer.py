"""The rows of one step while it runs: every value is measured once, however often it is seen.

A value is known by its storage, the storage's version, and the view of it; storages are held weakly, which keeps their
address from being used again within the step without keeping their memory.

Letters: M measured rows, S statistics, E exponent bins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueline.capture.host_copy import HostCopy
from trueline.capture.record.arguments import Slots
from trueline.capture.record.values import PLAIN, opened, stored
from trueline.schema.plan import Plan
from trueline.schema.records import STAT_NAMES, StackRecord, StepRecords, TensorRecord
from trueline.schema.roles import Record
from trueline.tensor import measure
from trueline.tensor.device_pass import stats_and_fingerprint

_MEASURED_FIRST = 2_048
_MAX_SHAPES = 4096
"""Shapes of which equal ones are kept once."""

_WHOLE: Mapping[str, Any] = MappingProxyType({})
_STRIDED = torch.strided
_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # type: ignore[attr-defined]


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module or operator; its rows share all that is said here."""

    micro: int
    phase: str
    name: str
    index: int
    kind: str
    api: str = ""
    module: str = ""
    args: str | None = None
    """Taken by the first of its rows."""
    stack: int | None = None
    flags: str = ""


def flagged(flags: str, flag: str) -> str:
    """Column ``flags`` with one more; '' adds none."""
    return f"{flags},{flag}" if flags and flag else flags or flag


_CALL = {name: attrgetter(name) for name in ("micro", "name", "kind", "api", "module", "stack")} | {
    "call": attrgetter("index")
}
"""Columns that all rows of a Call share, and where they are in it."""

_ROW = ("phase", "slot", "flags", "dtype", "shape", "numel", "args", "mesh", "same_as", "tensor", "note")
"""What a row has of its own, behind its Call. The rows of a step are one long list: thousands of tuples that live until
its end would set off Python's garbage collector, which then looks at all of them.
"""


class StepBuffer:
    """Takes the values of one step and makes ``StepRecords`` of them. Used again for the next step."""

    def __init__(self, plan: Plan, *, write: Callable[[Record], None]) -> None:
        self._write = write
        self._bytes_stored = 0
        self._meter = measure.HostMeter()
        self._stats_MS = np.empty((_MEASURED_FIRST, len(STAT_NAMES)))
        self._held: list[int] = []
        self._texts: dict[torch.dtype, str] = {}
        self._shapes: dict[torch.Size, torch.Size] = {}
        self._before: dict[str, tuple[Any, ...]] = {}
        self.follow(plan)
        self.begin(0)

    def follow(self, plan: Plan) -> None:
        """Measure and store as ``plan`` says from the next step on; what was stored before counts for its cap."""
        self._measures = plan.depth != "structure"
        self._fingerprints = plan.depth == "fingerprint"
        self._stores = plan.depth == "tensor"
        self._orders = plan.depth in ("fingerprint", "tensor")
        self._first_rows = plan.first_rows
        self._exponents = plan.exponents
        self._max_bytes = plan.max_bytes

    def begin(self, step: int) -> None:
        """Nothing has been seen of ``step`` yet."""
        self.step = step
        self._rows: list[Any] = []
        self._num_rows = 0
        if len(self._shapes) > _MAX_SHAPES:
            self._shapes.clear()
        self._measured: list[int] = []
        self._fingerprint_M: list[int] = []
        self._exponents_M: list[Any] = []
        self._on_device: dict[torch.device, list[tuple[int, dict[str, Tensor]]]] = {}
        self._tensors: list[tuple[HostCopy, TensorRecord]] = []
        self.forget()

    def forget(self) -> None:
        """Values seen until now are measured anew when they are seen again: someone may have changed them in a way
        that leaves no trace in their version (a collective, a fused update).
        """
        self._known: dict[tuple[Any, ...], int] = {}
        self._storages: dict[int, int] = {}
        for weak in self._held:
            torch.UntypedStorage._free_weak_ref(weak)  # type: ignore[attr-defined]
        self._held.clear()

    def changed(self, slots: Slots) -> None:
        """Something that leaves no trace in their version, a collective, may have changed these values: they are
        measured anew when they are seen again.
        """
        for _, x in slots:
            address = x.untyped_storage()._cdata
            if address in self._storages:
                self._storages[address] += 1

    def see(self, call: Call, slots: Slots, *, phase: str | None = None, note: str | None = None) -> None:
        """Add the rows of values of a call, and measure those that were not yet. ``note``: why they must not be."""
        rows, texts, shapes, phase = self._rows, self._texts, self._shapes, phase or call.phase
        for slot, x in slots:
            flags, mesh, whole, local, why = call.flags, None, _WHOLE, x, note
            if type(x) not in PLAIN or x.layout is not _STRIDED or x.is_meta or _functorch_wrapped(x):
                seen = opened(x)
                local, mesh, whole, why = seen.local, seen.mesh, seen.whole, note or seen.note
                if seen.pending_sum:
                    flags = flagged(flags, "pending_sum")
            same_as = tensor = numel = None
            dtype = x.dtype
            if why is None and self._measures and local is not None:
                numel = 2 * local.numel() if dtype.is_complex else local.numel()
                key = self._key(local, mesh)
                if key is not None and local is not x:
                    # What is done in place to a DTensor leaves no trace in the version of its local part.
                    key = (*key, None if x.is_inference() else x._version)
                same_as = self._known.get(key) if key is not None else None
                if same_as is None:
                    if key is not None:
                        self._known[key] = self._num_rows
                    tensor = self._measure(local.detach(), call, phase, slot, whole)
            shape = x.shape if local is None else local.shape
            shape = shapes.setdefault(shape, shape)
            text = texts.get(dtype) or self._text(dtype)
            rows += (call, phase, slot, flags, text, shape, numel, call.args, mesh, same_as, tensor, why)
            call.args = None
            self._num_rows += 1

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded of the step."""
        return not self._rows

    def finish(self, stacks: list[StackRecord]) -> Unwritten:
        """The step is over: what is to be written of it, once its numbers have reached the host."""
        arrivals = [_Arrival(found) for found in self._on_device.values()]
        num_M = len(self._measured)
        finished = Unwritten(
            step=self.step,
            columns=self._columns(),
            measured_M=np.array(self._measured, dtype=np.int32),
            stats_MS=self._stats_MS[:num_M].copy() if self._measures else None,
            fingerprint_M=np.array(self._fingerprint_M, dtype=np.uint64) if self._fingerprints else None,
            exponents_ME=np.stack(self._exponents_M) if self._exponents_M else None,
            arrivals=arrivals,
            tensors=self._tensors,
            stacks=stacks,
        )
        self.begin(self.step)
        return finished

    def _key(self, x: Tensor, mesh: str | None) -> tuple[Any, ...] | None:
        if x.is_inference():
            return None  # has no version
        storage = x.untyped_storage()
        address = storage._cdata
        changes = self._storages.get(address)
        if changes is None:
            changes = self._storages[address] = 0
            self._held.append(storage._weak_ref())  # type: ignore[attr-defined]
        if x.is_contiguous() or (not self._orders and _is_dense(x)):
            return (address, changes, x._version, x.storage_offset(), x.numel(), x.dtype, mesh)
        return (address, changes, x._version, x.storage_offset(), x.shape, x.stride(), x.dtype, mesh)

    def _measure(self, x: Tensor, call: Call, phase: str, slot: str, whole: Mapping[str, Any]) -> str | None:
        """Measure and perhaps store a value; the key of what was stored. ``whole`` says of what it is a shard."""
        index = len(self._measured)
        self._measured.append(self._num_rows)
        if index == len(self._stats_MS):
            self._stats_MS = np.concatenate([self._stats_MS, np.empty_like(self._stats_MS)])
        if self._on_host(x):
            if self._fingerprints:
                self._fingerprint_M.append(self._meter.all_into(x, self._stats_MS[index], **whole))
            else:
                self._meter.stats_into(x, self._stats_MS[index])
            if self._exponents:
                self._exponents_M.append(np.asarray(measure.exponents_of(x)))
        else:
            self._measure_on_device(index, x, whole)
        if not self._stores:
            return None
        return self._store(x, f"{call.micro}.{phase}.{call.name}#{call.index}:{slot}")

    def _on_host(self, x: Tensor) -> bool:
        return x.device.type == "cpu"

    def _measure_on_device(self, index: int, x: Tensor, whole: Mapping[str, Any]) -> None:
        stats_S, fingerprint = stats_and_fingerprint(x, fingerprint=self._fingerprints, whole=whole)
        found = {"stats": stats_S}
        if fingerprint is not None:
            found["fingerprint"] = fingerprint
            self._fingerprint_M.append(0)
        if self._exponents:
            found["exponents"] = measure.exponents_of(x)
            self._exponents_M.append(np.zeros(256, dtype=np.int64))
        self._on_device.setdefault(x.device, []).append((index, found))

    def _store(self, x: Tensor, key: str) -> str | None:
        part = x[: self._first_rows] if self._first_rows is not None and x.dim() > 0 else x
        num_bytes = part.numel() * part.element_size()
        if self._bytes_stored + num_bytes > self._max_bytes:
            return None
        taken = stored(part, step=self.step, key=f"{key}/{self._num_rows}")
        if taken is None:
            return None
        self._bytes_stored += num_bytes
        copy, record = taken
        if copy is None:
            self._write(record)
        else:
            self._tensors.append((copy, record))
        return record.key

    def _text(self, dtype: torch.dtype) -> str:
        text = self._texts[dtype] = str(dtype).removeprefix("torch.")
        return text

    def _columns(self) -> dict[str, tuple[Any, ...]]:
        """Columns of equal length; one that equals that of the step before is the same object."""
        calls = self._rows[:: 1 + len(_ROW)]
        columns = {name: tuple(map(take, calls)) for name, take in _CALL.items()}
        columns |= {name: tuple(self._rows[place :: 1 + len(_ROW)]) for place, name in enumerate(_ROW, start=1)}
        for name, values in columns.items():
            if self._before.get(name) == values:
                columns[name] = self._before[name]
        self._before = columns
        return columns


def _is_dense(x: Tensor) -> bool:
    """Whether the elements of ``x`` fill a stretch of memory, in whatever order: a permuted contiguous tensor."""
    filled = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != filled:
                return False
            filled *= size
    return True


@dataclass(eq=False)
class Unwritten:
    """A step between its end and the arrival of its numbers on the host."""

    step: int
    columns: dict[str, tuple[Any, ...]]
    measured_M: np.ndarray
    stats_MS: np.ndarray | None
    fingerprint_M: np.ndarray | None
    exponents_ME: np.ndarray | None
    arrivals: list[_Arrival]
    tensors: list[tuple[HostCopy, TensorRecord]]
    stacks: list[StackRecord]

    def ready(self) -> bool:
        """Whether everything is on the host; never blocks."""
        return all(copy.ready() for copy in self._copies())

    def wait(self) -> None:
        """Block until everything is on the host."""
        for copy in self._copies():
            copy.wait()

    def records(self) -> list[Record]:
        """What is to be written, in the order that a Sink wants."""
        for arrival in self.arrivals:
            arrival.fill("stats", self.stats_MS)
            arrival.fill("fingerprint", self.fingerprint_M)
            arrival.fill("exponents", self.exponents_ME)
        step = StepRecords(
            step=self.step,
            columns=self.columns,
            measured_M=self.measured_M,
            stats_MS=self.stats_MS,
            fingerprint_M=self.fingerprint_M,
            exponents_ME=self.exponents_ME,
        )
        return [*(record for _, record in self.tensors), *self.stacks, step]

    def _copies(self) -> list[HostCopy]:
        return [arrival.copy for arrival in self.arrivals] + [copy for copy, _ in self.tensors]


class _Arrival:
    """Numbers of one device on their way to the host, and the measured rows that they belong to."""

    def __init__(self, found: list[tuple[int, dict[str, Tensor]]]) -> None:
        self._indices = np.array([index for index, _ in found], dtype=np.int64)
        names = found[0][1]
        self.copy = HostCopy({name: torch.stack([tensors[name] for _, tensors in found]) for name in names})

    def fill(self, name: str, target: np.ndarray | None) -> None:
        """Put what was measured under ``name`` into its place."""
        if target is not None:
            arrived = self.copy.host[name].numpy()
            target[self._indices] = arrived.view(np.uint64) if target.dtype == np.uint64 else arrived
