"""Writes the rows of one table of one rank: at once to a journal, later to sealed Parquet parts.

Every so many steps, seconds or bytes the journal is sealed: its rows become a Parquet part under a temporary name,
which is fsynced and renamed, and then an empty journal replaces the full one in the same way. The journal's header
carries the number of the part it will become, so a reader that finds both knows that they hold the same rows.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from trueline.store.file_names import PartName
from trueline.store.log.durable import put_file, sync
from trueline.store.log.journal import FrameCodec, JournalWriter, raw_bytes
from trueline.store.log.merge import PartMerger
from trueline.store.log.sealed_tables import SealedTable
from trueline.store.log.short_rows import Row

SEAL_STEPS = 100
SEAL_S = 30.0


@dataclass(frozen=True, slots=True)
class SealAfter:
    """How much a journal may hold: distinct steps, seconds since the seal before, bytes of rows before compression."""

    steps: int = SEAL_STEPS
    seconds: float = SEAL_S
    size_bytes: float = math.inf


class TableWriter:
    """Takes frames and the rows in them. Every failure is an ``OSError``, and what was taken before it stays.

    ``attempt`` is the start of the job that writes. ``before_seal`` makes durable what the rows refer to. With
    ``merges`` small parts are merged (see ``merge``).
    """

    def __init__(
        self,
        run: str,
        table: SealedTable,
        *,
        codec: FrameCodec,
        seal_after: SealAfter,
        attempt: int,
        before_seal: Callable[[], None] = lambda: None,
        merges: bool = False,
    ) -> None:
        self._table = table
        self._journal_path = table.journal_path(run)
        self._parts_path = os.path.join(run, table.folder)
        self._codec = codec
        self._seal_after = seal_after
        self._before_seal = before_seal
        self._sequence = table.first_sequence(run, attempt)
        self._merger = PartMerger(self._parts_path) if merges else None
        self._journal: JournalWriter | None = None
        self._forget_rows()
        self._restart_journal()
        sync(os.path.dirname(self._journal_path))  # a Run whose journals are gone looks as if its job had ended

    def add(self, step: int, batch: Row, frame: bytes) -> None:
        """Take rows of ``step``: once this returns, a SIGKILL does not lose them; where it raises, they may be lost."""
        if self._journal is None:
            self._restart_journal()
        self._journal.append(frame)
        self._batches.append(batch)
        self._steps.add(step)
        self._size_bytes += raw_bytes(frame)  # Summing up the batch's own buffers takes as long as encoding it.
        if (
            len(self._steps) >= self._seal_at_steps
            or time.monotonic() >= self._seal_at_s
            or self._size_bytes >= self._seal_at_bytes
        ):
            self._seal()

    def close(self) -> None:
        """Seal what is left and remove the journal, which stays where sealing fails."""
        try:
            self._seal_rows()
            os.remove(self._journal_path)
            sync(os.path.dirname(self._journal_path))
        finally:
            self._close_journal()

    def abandon(self) -> None:
        """Close the file handle and drop the rows in memory; files stay as they are."""
        self._forget_rows()
        self._close_journal()

    def _seal(self) -> None:
        self._seal_at_steps += self._seal_after.steps
        self._seal_at_s = time.monotonic() + self._seal_after.seconds
        self._seal_at_bytes += self._seal_after.size_bytes
        self._seal_rows()
        self._restart_journal()

    def _seal_rows(self) -> None:
        """Make a part of the rows in the journal, which must not grow after that: it is closed here."""
        if not self._batches:
            return
        self._before_seal()
        data = self._table.encode(self._batches)
        part = PartName(self._table.rank, self._sequence, zlib.crc32(data))
        put_file(os.path.join(self._parts_path, str(part)), data)
        self._sequence += 1
        self._forget_rows()
        self._close_journal()
        # Otherwise a power cut could keep the emptied journal and lose the part.
        sync(self._parts_path)
        if self._merger is not None:
            self._merger.add(part)

    def _restart_journal(self) -> None:
        self._journal = JournalWriter(self._journal_path, sequence=self._sequence, codec=self._codec)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _forget_rows(self) -> None:
        self._batches: list[Row] = []
        self._steps: set[int] = set()
        self._size_bytes = 0
        self._seal_at_steps = self._seal_after.steps
        self._seal_at_s = time.monotonic() + self._seal_after.seconds
        self._seal_at_bytes = self._seal_after.size_bytes
