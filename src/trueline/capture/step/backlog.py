"""Steps between being measured and being written: their rows wait for the host, then their sums for the others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator

from trueline.capture.step.step_record import StepRecord

MAX_PENDING = 16
"""Steps whose sum is still awaited before the oldest is given up: with this many outstanding a worker is gone."""


class Backlog:
    """The steps of one rank, in order. With ``until`` (s of ``time.perf_counter``) what is asked for is waited for, and
    with ``decides_at`` only what has a say in that step.
    """

    def __init__(self) -> None:
        self._unwritten: deque[StepRecord] = deque()
        self._written: deque[StepRecord] = deque()

    def add(self, record: StepRecord) -> None:
        """A step has been measured; its numbers may still be on their way to the host."""
        self._unwritten.append(record)

    def decides(self, step: int) -> bool:
        """Whether a sum that is still out has a say in what happens at ``step``."""
        return _any_decides(self._written, step) or _any_decides(self._unwritten, step)

    def rows(self, *, until: float | None, decides_at: int | None) -> Iterator[StepRecord]:
        """Steps whose numbers have reached the host; they then wait for their sums."""
        while self._unwritten:
            waits = until is not None and (decides_at is None or _any_decides(self._unwritten, decides_at))
            if not waits and not self._unwritten[0].copy.ready():
                return
            record = self._unwritten.popleft()
            record.copy.wait()
            yield record
            self._written.append(record)

    def sums(self, *, until: float | None, decides_at: int | None) -> Iterator[tuple[StepRecord, bool]]:
        """Steps whose sums have arrived, in order, and with False those whose sums are given up."""
        while self._written:
            if decides_at is not None and not _any_decides(self._written, decides_at):
                return
            pending = self._written[0].pending
            if pending is None or pending.ready() or (until is not None and pending.wait(_left(until))):
                yield self._written.popleft(), True
            elif until is not None or sum(record.of.sampled for record in self._written) > MAX_PENDING:
                yield self._written.popleft(), False
            else:
                return

    def forget_sums(self) -> None:
        """No sum is awaited any more."""
        self._written.clear()


def _any_decides(records: Iterable[StepRecord], step: int) -> bool:
    return any(record.of.sampled and record.known <= step for record in records)


def _left(until: float) -> float:
    """Seconds left until then, and always a moment."""
    return max(until - time.perf_counter(), 0.001)
