"""Write what one rank records in a thread of its own: training only waits where more than a bound is in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable

from trueline.schema.columns.records import StackRecord, StepRecords, TensorRecord
from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why
from trueline.store import file_names
from trueline.store.log.background import MAX_BYTES, Background
from trueline.store.log.durable import make_folder, sync
from trueline.store.log.sealed_tables import records_table
from trueline.store.log.table_writer import SealAfter, TableWriter
from trueline.store.records.stack_files import StackFile
from trueline.store.records.step_parts import StepEncoder, check_records, size_in_memory
from trueline.store.records.tensor_files import RESERVE_BYTES, TensorFile, check_tensor

_log = SafeLogger()

Recorded = StepRecords | TensorRecord | StackRecord

SEAL_BYTES = 64 * 2**20


class RecordWriter:
    """Writes the recorded steps of ``rank`` into the Run at ``path``.

    ``write`` hands over and returns; a step is in the journal, and so survives a SIGKILL, once the thread has had its
    turn. What the thread meets comes out of the next ``write``. Values that cannot be stored cost only values: no more
    are stored after that, and a Finding in ``notices`` says so. ``attempt`` is the start of the job that records.
    ``require`` raises ``OSError`` where the Run is another's now.
    """

    def __init__(
        self,
        path: str,
        *,
        rank: int,
        seal_after: SealAfter,
        attempt: int = 0,
        max_bytes: int = MAX_BYTES,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        self.notices: list[Finding] = []
        self._path = path
        self._rank = rank
        self._require = require
        self._attempt = attempt
        self._seal_after = seal_after
        self._encoder = StepEncoder(rank)
        stacks_path = os.path.join(path, file_names.STACKS_DIR, file_names.stacks_name(rank))
        self._stacks = StackFile(stacks_path, goes_on=attempt > 0)
        self._tensors: dict[int, TensorFile] = {}
        self._unsynced: dict[int, str] = {}
        self._reserve_bytes = RESERVE_BYTES
        self._stores_tensors = True
        self._table: TableWriter | None = None
        for folder in (file_names.RECORDS_DIR, file_names.TENSORS_DIR):
            make_folder(os.path.join(path, folder, file_names.rank_folder(rank)))
        make_folder(os.path.join(path, file_names.STACKS_DIR))
        self._background: Background[Recorded] = Background(self._handle, max_bytes=max_bytes)

    def write(self, record: Recorded) -> None:
        """Hand over a record, which nobody may change any more.

        Raises ``InputError`` for one that does not fit, ``OSError`` for what became of an earlier one.
        """
        if isinstance(record, StepRecords):
            # checked here and not in the thread, so that who made the mistake hears of it
            check_records(record)
            self._background.enqueue(record, size_in_memory(record))
        elif isinstance(record, TensorRecord):
            check_tensor(record)
            self._background.enqueue(record, record.data.nbytes)
        else:
            self._background.enqueue(record, sum(map(len, record.frames)))

    def raise_error(self) -> None:
        """Raise the exception of the thread since the last call, if there was one."""
        self._background.raise_error()

    def drain(self) -> None:
        """Wait until all queued records are written."""
        self._background.drain()

    def close(self) -> None:
        """Write what is left, seal it, and end the thread; the values of a step that did not end stay as partial."""
        try:
            self._background.close()
        finally:
            for step in sorted(self._tensors):
                self._finish_tensors(step, partial=True)
            try:
                self._stacks.save()
            finally:
                if self._table is not None:
                    self._table.close()

    def abandon(self) -> None:
        """End the thread and give up the file handles; no file gets its name."""
        with contextlib.suppress(OSError):
            self._background.close()
        for file in self._tensors.values():
            file.drop()
        if self._table is not None:
            self._table.abandon()

    def _handle(self, record: Recorded) -> None:
        self._require()
        if isinstance(record, TensorRecord):
            self._add_tensor(record)
        elif isinstance(record, StackRecord):
            self._stacks.add(record)
        else:
            self._end_step(record)

    def _end_step(self, records: StepRecords) -> None:
        # values before rows: a row that names values is only written once these have their name
        if records.step in self._tensors:
            self._finish_tensors(records.step)
        self._stacks.save()
        batch, frame = self._encoder.encode(_renumbered(records, self._stacks.base))
        if self._table is None:
            self._table = TableWriter(
                self._path,
                records_table(self._rank),
                codec=self._encoder.codec,
                seal_after=self._seal_after,
                attempt=self._attempt,
                before_seal=self._sync_tensors,
            )
        if batch.num_rows:
            self._table.add(records.step, batch, frame)

    def _add_tensor(self, record: TensorRecord) -> None:
        if not self._stores_tensors:
            return
        try:
            file = self._tensors.get(record.step)
            if file is None:
                path = self._tensors_path(record.step)
                file = self._tensors[record.step] = TensorFile(path, reserve_bytes=self._reserve_bytes)
            file.add(record)
        except OSError as error:
            self._lose_tensors(record.step, error)

    def _finish_tensors(self, step: int, *, partial: bool = False) -> None:
        file, path = self._tensors.pop(step), self._tensors_path(step, partial=partial)
        try:
            self._reserve_bytes = file.finish(path)
            self._unsynced[step] = path
        except OSError as error:
            file.drop()
            self._lose_tensors(step, error)

    def _sync_tensors(self) -> None:
        """Make the values durable whose rows are sealed next: a while after they came, so that the kernel has written
        most of them by now. Files that somebody has removed meanwhile are left out.
        """
        unsynced, self._unsynced = self._unsynced, {}
        try:
            for path in unsynced.values():
                with contextlib.suppress(FileNotFoundError):
                    sync(path)
            if unsynced:
                sync(os.path.join(self._path, file_names.TENSORS_DIR, file_names.rank_folder(self._rank)))
        except OSError as error:
            self._lose_tensors(min(unsynced), error)

    def _lose_tensors(self, step: int, error: OSError) -> None:
        """Store no more values, so that the room that is left goes to statistics."""
        self._stores_tensors = False
        for file in self._tensors.values():
            file.drop()
        self._tensors.clear()
        claim = f"Tensors could not be stored from step {step} on rank {self._rank}: {why(error)}."
        _log.warning("trueline: %s Statistics are still recorded.", claim)
        self.notices.append(
            Finding(
                code=WATCH_DEGRADED,
                severity="info",
                claim=claim,
                ranks=(self._rank,),
                step_first=step,
                next=("Free space, choose another --out, or record fewer values, and start a new Run.",),
            )
        )

    def _tensors_path(self, step: int, *, partial: bool = False) -> str:
        name = file_names.tensors_name(step, partial=partial)
        return os.path.join(self._path, file_names.TENSORS_DIR, file_names.rank_folder(self._rank), name)


def _renumbered(records: StepRecords, base: int) -> StepRecords:
    """``records``, whose rows refer to call stacks by numbers that are ``base`` higher."""
    if not base or "stack" not in records.columns:
        return records
    stacks = [None if number is None else base + number for number in records.columns["stack"]]
    return dataclasses.replace(records, columns={**records.columns, "stack": stacks})
