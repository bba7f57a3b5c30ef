"""The rows of one step, while it runs and until its numbers have reached the host. Every value is measured once,
however often it is seen.

A value is identified by its storage, the storage's version, and the view of it. Storages are held by weak references:
their memory is freed, and their address is not used again within the step.

Letters: M measured rows, S statistics, E exponent bins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueline.capture.model.host_copy import HostCopy
from trueline.capture.record.arguments import Slots
from trueline.capture.record.calls import Call, StepRows, flagged
from trueline.capture.record.values import PLAIN, opened, stored
from trueline.schema.columns.records import STAT_NAMES, StackRecord, StepRecords, TensorRecord
from trueline.schema.plan import Plan
from trueline.schema.roles import Record
from trueline.tensor import measure
from trueline.tensor.device_pass import stats_and_fingerprint
from trueline.tensor.digest import digest_of_memory
from trueline.tensor.fingerprint import fingerprint_on_device
from trueline.tensor.lanes import MEASURABLE
from trueline.tensor.memory import is_held

_MEASURED_FIRST = 2_048  # rows of the first table of statistics, which doubles when it is full

UNFILLED = "memory that is not initialised"
"""Note of a value that nothing has written."""

_WHOLE: Mapping[str, Any] = MappingProxyType({})
_STRIDED = torch.strided
_has_overlap = torch._debug_has_internal_overlap  # type: ignore[attr-defined]  # 0: none, and no gaps
_functorch_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # type: ignore[attr-defined]


class StepBuffer:
    """Takes the values of one step and makes ``StepRecords`` of them. Used again for the next step."""

    def __init__(self, plan: Plan, *, write: Callable[[Record], None]) -> None:
        self._write = write
        self._bytes_stored = 0
        self._meter = measure.HostMeter()
        self._stats_MS = np.empty((_MEASURED_FIRST, len(STAT_NAMES)))
        self._weak_refs: list[int] = []
        self._rows = StepRows()
        self.follow(plan)
        self.begin(0)

    def follow(self, plan: Plan) -> None:
        """Measure and store as ``plan`` says from the next step on; what was stored before counts for its cap."""
        self._bits_alone = plan.bits_alone
        self._measures = plan.depth != "structure" or plan.bits_alone
        self._fingerprints = plan.depth == "fingerprint" or plan.bits_alone
        self._stores = plan.depth == "tensor"
        self._first_rows = plan.first_rows
        self._exponents = plan.exponents
        self._max_bytes = plan.max_bytes

    def write_to(self, write: Callable[[Record], None]) -> None:
        """Write what is stored to another Sink from now on."""
        self._write = write

    def begin(self, step: int) -> None:
        """Start to record ``step``, of which there are no rows yet."""
        self.step = step
        self._rows.begin()
        self._measured: list[int] = []
        self._fingerprint_M: list[int] = []
        self._exponents_M: list[Any] = []
        self._on_device: dict[Queue, list[tuple[int, dict[str, Tensor]]]] = {}
        self._tensors: list[tuple[HostCopy, TensorRecord]] = []
        self.forget()

    def forget(self) -> None:
        """Measure all values again when they are next seen: they may have been changed in a way that leaves their
        version as it was (a collective, a fused update).
        """
        self._row_by_key: dict[tuple[Any, ...], int] = {}
        self._aliases: dict[tuple[Any, ...], int] = {}
        self._storages: dict[int, int] = {}
        self._unfilled: set[tuple[Any, ...]] = set()
        self._filled: dict[int, list[tuple[int, int, int]]] = {}
        for weak in self._weak_refs:
            torch.UntypedStorage._free_weak_ref(weak)  # type: ignore[attr-defined]
        self._weak_refs.clear()

    def changed(self, slots: Slots) -> None:
        """Measure these values again when they are next seen: what changes them leaves their version as it was."""
        for _, x in slots:
            plain = _in_memory(x)
            address = None if plain is None else plain.untyped_storage()._cdata
            if address in self._storages:
                self._storages[address] += 1

    def is_unfilled(self, x: Tensor) -> bool:
        """True if the memory of ``x`` was made without a value (``UNFILLED``) and no function of torch has written to
        it since. A kernel that torch does not know may have.
        """
        if not self._unfilled or self.address_of(x) is None or self._version_of(x) not in self._unfilled:
            return False
        first, end = _extent(x)
        filled = self._filled.get(x.untyped_storage()._cdata, ())
        return not any(start <= first and end <= stop and x.numel() <= numel for start, stop, numel in filled)

    def fills(self, parts: Sequence[Tensor]) -> None:
        """Parts of memory that was not initialised have been written. The rest stays so, until as much is written as
        there is; what lies between a part's first and last element, and has no more elements, is taken as part of it.
        """
        for x in parts:
            storage = x.untyped_storage()
            filled = self._filled.setdefault(storage._cdata, [])
            filled.append((*_extent(x), x.numel()))
            if sum(numel for *_, numel in filled) * x.element_size() < storage.nbytes():
                self._unfilled.add(self._version_of(x))

    def _version_of(self, x: Tensor) -> tuple[Any, ...]:
        """Storage, its changes without a version, and version of a plain tensor."""
        return (self._key(x, None) or ())[:3]

    def see(self, call: Call, slots: Slots, *, phase: str | None = None, note: str | None = None) -> None:
        """Add the rows of values of a call, and measure each value that was not measured before. With a ``note``, which
        says why, none is measured.
        """
        phase, measures = phase or call.phase, self._measures and note is None
        for slot, x in slots:
            if not _is_plain(x) or x.dtype not in MEASURABLE or x.is_meta or not is_held(x):
                self._see_wrapped(call, phase, slot, x, note)
                continue
            same_as = numel = None
            if note is UNFILLED:
                self._unfilled.add(self._version_of(x))
            if measures:
                numel = x.numel()
                same_as = self._measure_once(x, self._key(x, None), call, phase, slot)
            row_key = (call, phase, slot, x.dtype, x.shape, numel, call.flags, None, note, _strides(x))
            self._rows.add(row_key, same_as=same_as)

    def _see_wrapped(self, call: Call, phase: str, slot: str, x: Tensor, note: str | None) -> None:
        """Add the row of a tensor that wraps other tensors, or has no values; measure it as ``see`` does."""
        measurable = opened(x)
        local, why, same_as, numel = measurable.local, note or measurable.note, None, None
        flags = flagged(call.flags, "pending_sum" if measurable.pending_sum else "")
        if why is None and self._measures and local is not None:
            numel = local.numel()
            key = self._key(local, measurable.mesh)
            if key is not None and local is not x:
                # An in-place change of a DTensor does not change the version of its local tensor.
                key = (*key, None if x.is_inference() else x._version)
            same_as = self._measure_once(local, key, call, phase, slot, whole=measurable.whole)
        shape = _shape(x if local is None else local)
        strides = None if local is None else _strides(local)
        self._rows.add(
            (call, phase, slot, x.dtype, shape, numel, flags, measurable.mesh, why, strides), same_as=same_as
        )

    def _measure_once(
        self,
        x: Tensor,
        key: tuple[Any, ...] | None,
        call: Call,
        phase: str,
        slot: str,
        whole: Mapping[str, Any] = _WHOLE,
    ) -> int | None:
        """The row that has the numbers of ``x`` already; None where they are measured here, for the row that is next.
        ``whole`` says of what it is a shard.
        """
        if key is not None:
            row = len(self._rows)
            same_as = self._row_by_key.setdefault(key, row)
            if same_as != row:
                return same_as
        self._measure(x, whole)
        if key is not None and key[1] and (same_as := self._seen_through_alias(key)) is not None:
            return same_as
        if self._stores:
            self._store(x.detach(), f"{call.micro}.{phase}.{call.name}#{call.index}:{slot}")
        return None

    def settle(self, final: Mapping[Call, Call | None]) -> None:
        """Put other calls in the place of those in ``final``; the rows of those for which there is None are dropped."""
        if not final:
            return
        new_row = self._rows.settle(final)
        self._row_by_key = {key: new_row[row] for key, row in self._row_by_key.items() if row in new_row}
        measured = sorted((new_row[row], index) for index, row in enumerate(self._measured) if row in new_row)
        self._measured = [row for row, _ in measured]
        order = [index for _, index in measured]
        if order == list(range(len(order))):
            del self._fingerprint_M[len(order) :], self._exponents_M[len(order) :]
        else:
            self._stats_MS[: len(order)] = self._stats_MS[order]
            self._fingerprint_M = [self._fingerprint_M[index] for index in order] if self._fingerprints else []
            self._exponents_M = [self._exponents_M[index] for index in order] if self._exponents else []
        new_index = {index: position for position, index in enumerate(order)}
        self._aliases = {key: new_index[index] for key, index in self._aliases.items() if index in new_index}
        on_device = {
            queue: [(new_index[index], numbers) for index, numbers in entries if index in new_index]
            for queue, entries in self._on_device.items()
        }
        self._on_device = {queue: entries for queue, entries in on_device.items() if entries}

    def _seen_through_alias(self, key: tuple[Any, ...]) -> int | None:
        """The row that has the numbers just measured of a tensor that was changed, where a tensor over the same memory
        has them already under a version of its own, as one by ``.data``; None where there is none.
        """
        address, changes, _, *view = key
        index = self._aliases.setdefault((address, changes, *view), len(self._measured) - 1)
        row, now = self._measured[index], len(self._measured) - 1
        if index == now:
            return None
        if not self._bits_alone and not np.array_equal(self._stats_MS[index], self._stats_MS[now], equal_nan=True):
            return None
        if self._on_device or (self._fingerprints and self._fingerprint_M[index] != self._fingerprint_M[now]):
            return None
        self._measured.pop()
        del self._fingerprint_M[now:], self._exponents_M[now:]
        self._row_by_key[key] = row
        return row

    @property
    def num_rows(self) -> int:
        """Rows of the step until now."""
        return len(self._rows)

    def finish(self, stacks: list[StackRecord]) -> Unwritten:
        """End the step; returns what is to be written of it once its numbers have reached the host."""
        arrivals = [Arrival(entries, queue) for queue, entries in self._on_device.items()]
        num_M = len(self._measured)
        finished = Unwritten(
            step=self.step,
            columns=self._rows.columns(),
            measured_M=np.array(self._measured, dtype=np.int32),
            stats_MS=self._stats_MS[:num_M].copy() if self._measures and not self._bits_alone else None,
            fingerprint_M=np.array(self._fingerprint_M, dtype=np.uint64) if self._fingerprints else None,
            exponents_ME=np.stack(self._exponents_M) if self._exponents_M else None,
            arrivals=arrivals,
            tensors=self._tensors,
            stacks=stacks,
        )
        self.begin(self.step)
        return finished

    def _key(self, x: Tensor, mesh: str | None) -> tuple[Any, ...] | None:
        """Key of a value within the step, equal where storage, version and view are; None where it has no version."""
        try:
            version = x._version
        except RuntimeError:
            return None  # made in inference mode
        address, changes = self._storage_of(x)
        # as nearly all are: the number of elements stands for shape and strides; another order of all has the same bits
        if x.is_contiguous() or (self._bits_alone and not _has_overlap(x)):
            return (address, changes, version, x.storage_offset(), x.numel(), x.dtype, mesh)
        return (address, changes, version, x.storage_offset(), x.shape, x.stride(), x.dtype, mesh)

    def _storage_of(self, x: Tensor) -> tuple[int, int]:
        """The address of the storage, which is not used again within the step, and its changes without a version."""
        storage = x.untyped_storage()
        address = storage._cdata
        changes = self._storages.get(address)
        if changes is None:
            changes = self._storages[address] = 0
            self._weak_refs.append(storage._weak_ref())  # type: ignore[attr-defined]
        return address, changes

    def address_of(self, x: Tensor) -> int | None:
        """The address of the storage; None for a tensor that has none of its own."""
        plain = _in_memory(x)
        return None if plain is None else self._storage_of(plain)[0]

    def _measure(self, x: Tensor, whole: Mapping[str, Any]) -> None:
        """Measure a value for the row that is next. ``whole`` says of what it is a shard."""
        index = len(self._measured)
        self._measured.append(len(self._rows))
        if self._bits_alone and self._on_host(x):
            self._fingerprint_M.append(digest_of_memory(x))
            return
        if index == len(self._stats_MS):
            self._stats_MS = np.concatenate([self._stats_MS, np.empty_like(self._stats_MS)])
        if not self._on_host(x):
            self._measure_on_device(index, x.detach(), whole)
            return
        if self._fingerprints:
            self._fingerprint_M.append(self._meter.all_into(x, self._stats_MS[index], **whole))
        else:
            self._meter.stats_into(x, self._stats_MS[index], **whole)
        if self._exponents:
            self._exponents_M.append(np.asarray(measure.exponents_of(x)))

    def _on_host(self, x: Tensor) -> bool:
        return x.is_cpu

    def _measure_on_device(self, index: int, x: Tensor, whole: Mapping[str, Any]) -> None:
        numbers: dict[str, Tensor] = {}
        if self._bits_alone:
            fingerprint: Tensor | None = fingerprint_on_device(x, **whole)
        else:
            numbers["stats"], fingerprint = stats_and_fingerprint(x, fingerprint=self._fingerprints, whole=whole)
        if fingerprint is not None:
            numbers["fingerprint"] = fingerprint
            self._fingerprint_M.append(0)
        if self._exponents:
            numbers["exponents"] = measure.exponents_of(x)
            self._exponents_M.append(np.zeros(256, dtype=np.int64))
        self._on_device.setdefault(queue_of(x), []).append((index, numbers))

    def _store(self, x: Tensor, key: str) -> None:
        """Store a value of the row that is next, unless the cap is reached."""
        part = x[: self._first_rows] if self._first_rows is not None and x.dim() > 0 else x
        num_bytes = part.numel() * part.element_size()
        if self._bytes_stored + num_bytes > self._max_bytes:
            return
        row = len(self._rows)
        copied = stored(part, step=self.step, key=f"{key}/{row}")
        if copied is None:
            return
        self._bytes_stored += num_bytes
        copy, record = copied
        if copy is None:
            self._write(record)
        else:
            self._tensors.append((copy, record))
        self._rows.stored(row, record.key)


def _is_plain(x: Tensor) -> bool:
    """True if the elements of ``x`` lie in a storage of its own, at strides."""
    return type(x) in PLAIN and x.layout is _STRIDED and not x.is_nested and not _functorch_wrapped(x)


def _in_memory(x: Tensor) -> Tensor | None:
    """``x``, or the shard of a DTensor; None for one that has no storage of its own."""
    x = x if type(x) in PLAIN else getattr(x, "_local_tensor", x)
    return x if _is_plain(x) else None


def _shape(x: Tensor) -> torch.Size:
    """Shape of ``x``; () of a nested tensor, whose parts have shapes of their own, or of one with symbols as sizes."""
    if x.is_nested:
        return torch.Size()
    return x.shape if all(type(size) is int for size in x.shape) else torch.Size()


def _strides(x: Tensor) -> tuple[int, ...] | None:
    """Strides in elements; None for a value that lies in memory row by row, or has none."""
    return None if x.layout is not _STRIDED or x.is_nested or x.is_contiguous() else x.stride()


@dataclass(eq=False)
class Unwritten:
    """The parts of ``StepRecords``, and the copies to the host that are still on their way."""

    step: int
    columns: dict[str, tuple[Any, ...]]
    measured_M: np.ndarray
    stats_MS: np.ndarray | None
    fingerprint_M: np.ndarray | None
    exponents_ME: np.ndarray | None
    arrivals: list[Arrival]
    tensors: list[tuple[HostCopy, TensorRecord]]
    stacks: list[StackRecord]

    def ready(self) -> bool:
        """True if everything is on the host; never blocks."""
        return all(copy.ready() for copy in self._copies())

    def wait(self) -> None:
        """Block until everything is on the host."""
        for copy in self._copies():
            copy.wait()

    def records(self) -> list[Record]:
        """Records to be written, in the order that a Sink wants."""
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


Queue = tuple[torch.device, torch.cuda.Stream | None]
"""Device on which a value was measured, and its stream where it is a CUDA device."""


def queue_of(x: Tensor) -> Queue:
    """Queue of the work on ``x`` that is started now."""
    return x.device, torch.cuda.current_stream(x.device) if x.is_cuda else None


class Arrival:
    """Numbers of one queue on their way to the host, and the measured rows that they belong to. They are copied on the
    stream that made them (FSDP2 reduces on a stream of its own), so that no stream waits for it or reads too early.
    """

    def __init__(self, entries: list[tuple[int, dict[str, Tensor]]], queue: Queue) -> None:
        self._indices = np.array([index for index, _ in entries], dtype=np.int64)
        names = entries[0][1]
        _, stream = queue
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            self.copy = HostCopy({name: torch.stack([tensors[name] for _, tensors in entries]) for name in names})

    def fill(self, name: str, target: np.ndarray | None) -> None:
        """Write the numbers ``name`` into ``target`` at the indices of their rows."""
        if target is not None:
            arrived = self.copy.host[name].numpy()
            target[self._indices] = arrived.view(np.uint64) if target.dtype == np.uint64 else arrived


def _extent(x: Tensor) -> tuple[int, int]:
    """Offset of the first element in its storage, and of the one behind the last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.storage_offset(), x.storage_offset() + last + 1
