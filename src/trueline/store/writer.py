"""RunWriter: one rank's share of a Run, crash-safe at every moment.

A workers row is in the journal when ``write`` returns, and in a sealed Parquet part after 100 steps or 30 s (see
``table_writer``). What a step computes is written by a thread of its own (see ``record_writer``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trueline.schema.columns.records import StackRecord, StepRecords, TensorRecord
from trueline.schema.columns.rollouts import TableName, TableRows
from trueline.schema.errors import InputError
from trueline.schema.files.run_lock import Hold
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.files.start import FIRST, Job, Start
from trueline.schema.finding import Finding
from trueline.schema.roles import Record
from trueline.schema.text import documents
from trueline.store import file_names
from trueline.store.attempts import next_start
from trueline.store.filesystem import local_path
from trueline.store.findings import FindingsFile
from trueline.store.log.background import MAX_BYTES
from trueline.store.log.claim import alone_in, claim, claim_share, claimed_error
from trueline.store.log.durable import make_folder, replace_file
from trueline.store.log.earlier_start import (
    end_last_line,
    seal_leftover,
)
from trueline.store.log.journal import FrameCodec
from trueline.store.log.sealed_tables import SealedTable, kept_table, tables_of, workers_table
from trueline.store.log.table_writer import SEAL_S, SEAL_STEPS, SealAfter, TableWriter
from trueline.store.records.record_writer import SEAL_BYTES, RecordWriter
from trueline.store.rows import worker_schema
from trueline.store.table_rows import TableEncoder


class RunWriter:
    """A Sink that writes the rows, environment, Findings and recorded steps of ``rank`` into the Run at ``path``.

    Rank 0 (or the one that ``creates``) makes the directory, before any other rank constructs its writer, and writes a
    provisional manifest at once. Raises ``RunExistsError`` where there is something already; ``overwrite`` removes an
    earlier Run, but never files that are not a Run's; with a ``start`` that is not the first, the writer goes on with
    what is there (see ``store/attempts.py``). Everything raises ``OSError`` where the disk is full, read-only,
    or gone; what was written stays readable then, and the writer may go on once there is room. One thread at a time may
    use it. At most ``queue_bytes`` of recorded steps and tensors wait in memory for being written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int,
        overwrite: bool = False,
        creates: bool | None = None,
        start: Start = FIRST,
        seal_steps: int = SEAL_STEPS,
        seal_s: float = SEAL_S,
        queue_bytes: int = MAX_BYTES,
    ) -> None:
        self.path: str = local_path(path)
        self.start = start
        self._rank = rank
        self._seal_after = SealAfter(seal_steps, seal_s)
        self._queue_bytes = queue_bytes
        self._pid = os.getpid()
        self._codec = FrameCodec(worker_schema())
        self._records: RecordWriter | None = None
        self._tables: dict[TableName, tuple[TableEncoder, TableWriter]] = {}
        self._busy = False
        self._close_asked = False
        self._closed = False
        creates = rank == 0 if creates is None else creates
        # two jobs that begin at once must not both find the place free
        with alone_in(self.path) if creates else contextlib.nullcontext():
            self._hold = self._take_place(creates=creates, overwrite=overwrite)
        try:
            if start.attempt:
                self._take_over()
            self._findings = FindingsFile(
                os.path.join(self.path, file_names.findings_name(rank)),
                reserve_path=os.path.join(self.path, file_names.JOURNAL_DIR, file_names.reserve_name(rank)),
            )
            self._rows = self._open_table(workers_table(rank), self._codec, self._seal_after)
        except OSError:
            self._hold.release()
            raise

    def _take_place(self, *, creates: bool, overwrite: bool) -> Hold:
        goes_on = self.start.attempt > 0
        if creates and not goes_on:
            claim(self.path, overwrite=overwrite)
        elif not goes_on:
            claim_share(self.path, self._rank, overwrite=overwrite)
        make_folder(self.path)
        if creates:  # first of all: what has no manifest is no Run, neither to be replaced nor to go on with
            self._write_manifest(self.start.manifest or Manifest())
        for name in (file_names.ENV_DIR, file_names.WORKERS_DIR, file_names.JOURNAL_DIR):
            make_folder(os.path.join(self.path, name))
        try:
            return Hold(self.path, rank=self._rank, takes_over=goes_on or overwrite)
        except FileExistsError:
            raise claimed_error(self.path) from None

    def _open_table(self, table: SealedTable, codec: FrameCodec, seal_after: SealAfter) -> TableWriter:
        return TableWriter(
            self.path,
            table,
            codec=codec,
            seal_after=seal_after,
            attempt=self.start.attempt,
            before_seal=self._hold.require,
            merges=table.folder == file_names.WORKERS_DIR,
        )

    def _take_over(self) -> None:
        """Seal what an earlier start of the job left of this rank."""
        for table in tables_of(self._rank):
            seal_leftover(self.path, table)
        end_last_line(os.path.join(self.path, file_names.findings_name(self._rank)))

    def describe(self, manifest: Manifest | None, env: RankEnv) -> None:
        """Write, or replace, this rank's environment and on rank 0 the manifest."""
        self._hold.require()
        if manifest is not None:
            self._write_manifest(manifest)
        path = os.path.join(self.path, file_names.ENV_DIR, file_names.env_name(self._rank))
        replace_file(path, documents.encode(env.model_dump()))

    def write(self, record: Record) -> None:
        """Take a piece of a row or a Finding, which survive a SIGKILL from the moment this returns, or what is recorded
        of a step, which does so a little later and of which nobody may change anything any more.

        Waits where more is handed over than the disk takes. List elements of a row must not be None (NaN for a float
        that was not measured). Raises ``InputError`` for a column that does not exist or a value that does not fit,
        ``OSError`` where it, or something recorded before it, cannot be written.
        """
        # a fork has the file handles too, and would write each row once more
        if os.getpid() != self._pid:
            return
        if self._closed:
            raise OSError(errno.EBADF, "The Run is closed and takes no more rows", self.path)
        # a signal handler may call ``close`` in the middle of a write
        self._busy = True
        try:
            self._hold.beat()
            self._take_notices()
            if isinstance(record, StepRecords | TensorRecord | StackRecord):
                self._write_recorded(record)
            elif isinstance(record, TableRows):
                self._write_table(record)
            elif isinstance(record, Finding):
                self._write_finding(record)
            else:
                self._write_row(record)
        finally:
            self._busy = False
            if self._close_asked:
                self.close()

    def close(self) -> None:
        """Seal what is left and remove the journals. A second call, or one in a forked child, does nothing.

        Called by a signal handler while ``write`` runs, it takes effect when that ends: until then everything that was
        taken is in the journals.
        """
        if self._closed or os.getpid() != self._pid:
            return
        if self._busy:
            self._close_asked = True
            if self._records is not None:
                self._records.drain()
            return
        self._closed = True
        try:
            self._hold.require()
        except OSError:
            self._let_go()
            raise
        try:
            if self._records is not None:
                self._records.close()
                self._take_notices()
        finally:
            self._findings.close()
            try:
                for _, table in self._tables.values():
                    table.close()
                self._rows.close()
            finally:
                self._hold.release()

    def _let_go(self) -> None:
        """Leave alone what has become another's: only what this process holds is given back."""
        if self._records is not None:
            self._records.abandon()
        self._findings.close(removes_reserve=False)
        self._rows.abandon()
        for _, table in self._tables.values():
            table.abandon()
        self._hold.release()

    def _write_manifest(self, manifest: Manifest) -> None:
        replace_file(os.path.join(self.path, file_names.MANIFEST), documents.encode(manifest.model_dump()))

    def _write_row(self, record: Mapping[str, Any]) -> None:
        row = dict(record)
        # in C: this is asked of every row, and nearly none has None
        if any(map(operator.is_, row.values(), itertools.repeat(None))):
            row = {name: value for name, value in row.items() if value is not None}
        if "step" not in row:
            raise InputError(f"A workers row needs 'step', got only {', '.join(row) or 'nothing'}.")
        row["rank"] = self._rank
        self._rows.add(row["step"], *self._codec.encode(row))

    def _write_table(self, record: TableRows) -> None:
        if record.table not in self._tables:
            make_folder(os.path.join(self.path, record.table))
            encoder = TableEncoder(record.table, self._rank)
            kept, seal_after = kept_table(self._rank, record.table), self._seal_after_bytes()
            self._tables[record.table] = encoder, self._open_table(kept, encoder.codec, seal_after)
        encoder, table = self._tables[record.table]
        if record.num_rows:
            table.add(record.step, *encoder.encode(record))

    def _write_recorded(self, record: StepRecords | TensorRecord | StackRecord) -> None:
        if self._records is None:
            self._records = RecordWriter(
                self.path,
                rank=self._rank,
                seal_after=self._seal_after_bytes(),
                attempt=self.start.attempt,
                max_bytes=self._queue_bytes,
                require=self._hold.require,
            )
        self._records.write(record)

    def _seal_after_bytes(self) -> SealAfter:
        return dataclasses.replace(self._seal_after, size_bytes=SEAL_BYTES)

    def _take_notices(self) -> None:
        """Raise what the thread met, and write the Findings that it left."""
        if self._records is not None:
            while self._records.notices:
                self._write_finding(self._records.notices.pop(0))
            self._records.raise_error()

    def _write_finding(self, finding: Finding) -> None:
        self._hold.require()
        self._findings.add(documents.encode(finding.to_json(), indent=None))


@dataclass(frozen=True)
class Destination:
    """Where a job writes its Run, or its Runs where groups of ranks average apart from each other.

    The Run of the group of rank 0 is at ``out``; that of a group led by another rank is at ``out`` followed by
    ``.ranks-<lead>``.
    """

    out: str | os.PathLike[str]
    overwrite: bool = False
    resume: bool = False

    def open(self, *, rank: int, lead: int, job: Job, start: Start | None) -> RunWriter:
        """This rank's writer. The lead goes first, without a ``start``: it creates the Run, or finds out how the job
        goes on with it, and the ``start`` of its writer is for the others. Raises as ``RunWriter`` and ``next_start``.
        """
        if self.overwrite and self.resume:
            raise InputError("overwrite and resume contradict each other. Pass one of them.")
        if job.step is not None and job.step < 0:
            raise InputError(f"step={job.step} is given for the first step, which must be 0 or more.")
        path = os.fspath(self.out) if lead == 0 else f"{os.fspath(self.out)}{file_names.OF_GROUP}{lead}"
        if start is None:
            start = next_start(path, job, rank=rank) if self.resume else Start(step=job.step or 0)
        leads = rank == lead
        return RunWriter(path, rank=rank, overwrite=self.overwrite and leads, creates=leads, start=start)


worker_schema()  # with this module, not while a job waits for its first step
