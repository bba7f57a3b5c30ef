"""Steps that are measured and not written yet: their rows wait for the copy to the host, then their sums for the other
ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.capture.adapters.base import Reduction
from trueline.capture.model.host_copy import HostCopy
from trueline.capture.model.world import seconds_left
from trueline.capture.probes.base import Probe, Step
from trueline.capture.step import own_columns, shared_columns
from trueline.capture.step.exchange import Pending
from trueline.capture.step.shared_columns import Array, Measurement
from trueline.schema.formats import FORMATS

MAX_PENDING = 16
"""Steps whose sums are outstanding before the oldest is given up: with so many a rank must have stopped."""


class Backlog:
    """The steps of one rank, in order. With ``deadline`` (s of ``time.perf_counter``) its methods wait until then, with
    ``decides_at`` only for sums on which decisions for that step depend.
    """

    def __init__(self) -> None:
        self._unwritten: deque[StepRecord] = deque()
        self._written: deque[StepRecord] = deque()

    def add(self, record: StepRecord) -> None:
        """A step has been measured; its numbers may still be on their way to the host."""
        self._unwritten.append(record)

    def decides(self, step: int) -> bool:
        """True if decisions for ``step`` depend on a sum that has not arrived."""
        return _any_decides(self._written, step) or _any_decides(self._unwritten, step)

    def rows(self, *, deadline: float | None, decides_at: int | None) -> Iterator[StepRecord]:
        """Steps whose numbers have reached the host; they then wait for their sums."""
        while self._unwritten:
            waits = deadline is not None and (decides_at is None or _any_decides(self._unwritten, decides_at))
            if not waits and not self._unwritten[0].copy.ready():
                return
            record = self._unwritten.popleft()
            record.copy.wait()
            yield record
            self._written.append(record)

    def sums(self, *, deadline: float | None, decides_at: int | None) -> Iterator[tuple[StepRecord, bool]]:
        """Steps in order with True where their sums have arrived, with False where these are given up."""
        while self._written:
            if decides_at is not None and not _any_decides(self._written, decides_at):
                return
            pending = self._written[0].pending
            if pending is None or pending.ready() or (deadline is not None and pending.wait(seconds_left(deadline))):
                yield self._written.popleft(), True
            elif deadline is not None or sum(record.step_state.sampled for record in self._written) > MAX_PENDING:
                yield self._written.popleft(), False
            else:
                return

    def forget_sums(self) -> None:
        """Stop waiting for sums."""
        self._written.clear()


def _any_decides(records: Iterable[StepRecord], step: int) -> bool:
    return any(record.step_state.sampled and record.known_from <= step for record in records)


@dataclass
class StepRecord:
    """Values that the ``probes`` took at a step, on their way to the host, and the sum over workers where it is
    sampled. A ``beat`` has no row: its sum only says whether the Plan has changed. ``wants`` is the digest of the
    Layout that would fit the model now; ``measured`` says that gradients were looked at.
    """

    step_state: Step
    row: dict[str, Any]
    copy: HostCopy
    interval: int
    passes: int
    probes: Sequence[Probe] = ()
    wants: int = 0
    measured: bool = False
    beat: bool = False
    looked_at: bool = False
    measurement: Measurement | None = None
    pending: Pending | None = None
    reduced_norm2: Array | None = None

    @property
    def step(self) -> int:
        """The optimizer step."""
        return self.step_state.number

    @property
    def known_from(self) -> int:
        """The first step that may depend on what its sum says: two samples later every rank has it."""
        return self.step + 2 * self.interval

    def part_of_sum(self, reduction: Reduction, *, workers: int) -> Array:
        """This worker's part of the sum (``shared_columns.pack``), from what has reached the host."""
        shards = workers if reduction.in_parts else self.step_state.layout.mesh.shards
        measurement = own_columns.own_measurement(self.copy.host, self.step_state.layout)
        self.reduced_norm2 = own_columns.reduced_norm2(self.copy.host, self.step_state.layout)
        replicas = workers // shards if shards > 1 else 1
        part = shared_columns.pack(measurement, reduced_norm2=self.reduced_norm2, sharded=shards > 1, replicas=replicas)
        self.measurement = measurement
        return part

    def columns_of(self, scalars: Array, flat: Array, reduction: Reduction) -> dict[str, object]:
        """The columns that the sum over workers adds to the row (``shared_columns.columns``); none where they did not
        all measure, or not by one Layout.
        """
        layout = self.step_state.layout
        digest = shared_columns.agreed(scalars[:, shared_columns.SCALARS.index("layout")])
        if self.measurement is None or digest != layout.digest:
            return {}
        return shared_columns.columns(
            self.measurement,
            shared_columns.unpack(scalars, flat, groups=len(layout.groups), k=layout.k),
            reduced_norm2=self.reduced_norm2,
            sharded=reduction.in_parts or layout.mesh.shards > 1,
            numel=np.array([spec.numel for spec in layout.groups], dtype=np.float64),
            dtype=reduction.dtype,
            roundings=reduction.roundings,
            sees_result=reduction.seen,
            returned=reduction.returned,
            received=reduction.received,
            used_dtype=_coarsest({reduction.dtype, *(str(param.dtype) for param in layout.params)}),
        )


def _coarsest(dtypes: set[str]) -> str:
    """The dtype of ``dtypes`` with the largest rounding error."""
    name_by_unit = {FORMATS[name].unit: name for dtype in dtypes if (name := dtype.removeprefix("torch.")) in FORMATS}
    return name_by_unit[max(name_by_unit)] if name_by_unit else "float32"
