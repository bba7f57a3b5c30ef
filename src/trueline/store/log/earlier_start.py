"""Takes over the files that an earlier start of the job left of one rank: seals its journals before the next start
writes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from trueline.store import file_names
from trueline.store.file_names import PartName
from trueline.store.log.durable import append, make_folder, replace_file
from trueline.store.log.journal import JournalContent, read_journal
from trueline.store.log.parts import DamagedPart, decode_part, encode_part
from trueline.store.log.short_rows import Row
from trueline.store.records.step_parts import encode_records
from trueline.store.rows import RECORD_SCHEMA, TABLE_SCHEMAS, merge_batches, worker_schema
from trueline.store.table_rows import encode_table


@dataclass(frozen=True)
class RankJournal:
    """A journal of a rank by its name under ``journal/``, and the ``folder`` and the form of the parts it becomes."""

    name: str
    folder: str
    schema: pa.Schema
    encode: Callable[[list[Any]], bytes]


def journals_of(rank: int) -> tuple[RankJournal, ...]:
    """The journals of its rows, of its recorded steps, and of each table whose rows are kept as they came."""
    records = f"{file_names.RECORDS_DIR}/{file_names.rank_folder(rank)}"
    return (
        RankJournal(file_names.journal_name(rank), file_names.WORKERS_DIR, worker_schema(), encode_rows),
        RankJournal(file_names.records_journal_name(rank), records, RECORD_SCHEMA, encode_records),
        *(
            RankJournal(file_names.table_journal_name(rank, table), table, schema, partial(encode_table, table))
            for table, schema in TABLE_SCHEMAS.items()
        ),
    )


def encode_rows(batches: Sequence[Row]) -> bytes:
    """The part of the ``workers`` table that these are."""
    return encode_part(merge_batches(batches))


def sealed(
    content: JournalContent, rank_journal: RankJournal, rank: int, present: Collection[int]
) -> tuple[PartName, bytes] | None:
    """The part that the rows of a journal become; None without rows, or where it is among the parts ``present``. A torn
    frame at its end, the step in flight, is left out.
    """
    if not content.batches or content.sequence in present:
        return None
    data = rank_journal.encode(content.batches)
    number = max(present, default=-1) + 1 if content.sequence is None else content.sequence
    return PartName(rank, number, zlib.crc32(data)), data


def seal_leftover(run: str, rank_journal: RankJournal, *, rank: int) -> None:
    """Make a part of the rows in a journal whose process is gone, and remove it. Every failure is an ``OSError``.

    Where it became a part already it is only removed.
    """
    journal_path = os.path.join(run, file_names.JOURNAL_DIR, rank_journal.name)
    try:
        with open(journal_path, "rb") as file:
            content = read_journal(file.read(), rank_journal.schema)
    except FileNotFoundError:
        return
    parts_path = os.path.join(run, rank_journal.folder)
    if part := sealed(content, rank_journal, rank, file_names.numbers_of(parts_of(parts_path, rank))):
        make_folder(parts_path)
        replace_file(os.path.join(parts_path, str(part[0])), part[1])
    os.remove(journal_path)


def first_sequence(parts_path: str, rank: int, attempt: int) -> int:
    """The number of the first part that a start of the job writes: its own, after those that are there already."""
    numbers = file_names.numbers_of(part for part in parts_of(parts_path, rank) if part.attempt == attempt)
    return max(numbers, default=attempt * file_names.PARTS_PER_ATTEMPT - 1) + 1


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
    journal = _journal_of(path, rank)
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


def parts_of(folder: str, rank: int) -> list[PartName]:
    """The parts of ``rank`` in a folder, in the order in which they were written."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(part for name in names if (part := PartName.parse(name)) is not None and part.rank == rank)


def _journal_of(path: str, rank: int) -> JournalContent:
    try:
        with open(os.path.join(path, file_names.JOURNAL_DIR, file_names.journal_name(rank)), "rb") as file:
            return read_journal(file.read(), worker_schema())
    except OSError:
        return JournalContent()
