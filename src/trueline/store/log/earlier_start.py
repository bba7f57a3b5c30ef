"""Takes over the files that an earlier start of the job left of one rank: seals its journals before the next start
writes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection

from trueline.store import file_names
from trueline.store.file_names import PartName
from trueline.store.log.durable import append, make_folder, replace_file
from trueline.store.log.journal import JournalContent, read_journal
from trueline.store.log.parts import DamagedPart, decode_part
from trueline.store.log.sealed_tables import SealedTable, parts_of, workers_table


def sealed(content: JournalContent, table: SealedTable, present: Collection[int]) -> tuple[PartName, bytes] | None:
    """The part that the rows of a journal become; None without rows, or where it is among the parts ``present``. A torn
    frame at its end, the step in flight, is left out.
    """
    if not content.batches or content.sequence in present:
        return None
    data = table.encode(content.batches)
    number = max(present, default=-1) + 1 if content.sequence is None else content.sequence
    return PartName(table.rank, number, zlib.crc32(data)), data


def seal_leftover(run: str, table: SealedTable) -> None:
    """Make a part of the rows in a journal whose process is gone, and remove it. Every failure is an ``OSError``.

    Where it became a part already it is only removed.
    """
    journal_path = table.journal_path(run)
    try:
        with open(journal_path, "rb") as file:
            content = read_journal(file.read(), table.schema)
    except FileNotFoundError:
        return
    parts_path = os.path.join(run, table.folder)
    if part := sealed(content, table, file_names.numbers_of(parts_of(parts_path, table.rank))):
        make_folder(parts_path)
        replace_file(os.path.join(parts_path, str(part[0])), part[1])
    os.remove(journal_path)


def end_last_line(path: str) -> None:
    """Add a newline to a text file whose last line is incomplete, because the process that wrote it was killed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n":
            append(fd, b"\n", size_bytes)
    finally:
        os.close(fd)


def last_step(path: str, rank: int) -> int | None:
    """The last step of the latest start of the job that wrote rows of ``rank`` in the Run at ``path``; None if none."""
    parts = parts_of(os.path.join(path, file_names.WORKERS_DIR), rank)
    journal = _journal_of(path, workers_table(rank))
    if journal.batches and journal.attempt(parts) >= max((part.attempt for part in parts), default=0):
        return max(max(batch["step"].to_pylist()) for batch in journal.batches)
    for part in reversed(parts):
        try:
            with open(os.path.join(path, file_names.WORKERS_DIR, str(part)), "rb") as file:
                steps = decode_part(file.read(), part, ["step"])["step"]
        except (OSError, DamagedPart):
            continue
        if len(steps):
            return max(steps.to_pylist())
    return None


def _journal_of(path: str, table: SealedTable) -> JournalContent:
    try:
        with open(table.journal_path(path), "rb") as file:
            return read_journal(file.read(), table.schema)
    except OSError:
        return JournalContent()
