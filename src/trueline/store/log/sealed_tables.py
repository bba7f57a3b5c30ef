"""The tables of a Run that one rank writes: each a journal, and the folder of the parts that it becomes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from trueline.schema.columns.rollouts import TableName
from trueline.store import file_names
from trueline.store.file_names import PartName
from trueline.store.log.parts import encode_part
from trueline.store.log.short_rows import Row
from trueline.store.records.step_parts import encode_records
from trueline.store.rows import RECORD_SCHEMA, TABLE_SCHEMAS, merge_batches, worker_schema
from trueline.store.table_rows import encode_table


@dataclass(frozen=True)
class SealedTable:
    """A table of ``rank``: the name of its ``journal``, and the ``folder`` and the form of its parts."""

    rank: int
    journal: str
    folder: str
    schema: pa.Schema
    encode: Callable[[list[Any]], bytes]

    def journal_path(self, run: str) -> str:
        """The journal in the Run at ``run``."""
        return os.path.join(run, file_names.JOURNAL_DIR, self.journal)

    def first_sequence(self, run: str, attempt: int) -> int:
        """The number of the first part that a start of the job writes: its own, after those that are there already."""
        parts = parts_of(os.path.join(run, self.folder), self.rank)
        numbers = file_names.numbers_of(part for part in parts if part.attempt == attempt)
        return max(numbers, default=attempt * file_names.PARTS_PER_ATTEMPT - 1) + 1


def workers_table(rank: int) -> SealedTable:
    """The rows of steps, whose pieces are merged."""

    def encode(batches: Sequence[Row]) -> bytes:
        return encode_part(merge_batches(batches))

    return SealedTable(rank, file_names.journal_name(rank), file_names.WORKERS_DIR, worker_schema(), encode)


def records_table(rank: int) -> SealedTable:
    """The recorded steps."""
    folder = f"{file_names.RECORDS_DIR}/{file_names.rank_folder(rank)}"
    return SealedTable(rank, file_names.records_journal_name(rank), folder, RECORD_SCHEMA, encode_records)


def kept_table(rank: int, name: TableName) -> SealedTable:
    """A table whose rows are kept as they came."""
    journal = file_names.table_journal_name(rank, name)
    return SealedTable(rank, journal, name, TABLE_SCHEMAS[name], partial(encode_table, name))


def tables_of(rank: int) -> tuple[SealedTable, ...]:
    """All that a rank writes."""
    return workers_table(rank), records_table(rank), *(kept_table(rank, name) for name in TABLE_SCHEMAS)


def parts_of(folder: str, rank: int) -> list[PartName]:
    """The parts of ``rank`` in a folder, in the order in which they were written."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(part for name in names if (part := PartName.parse(name)) is not None and part.rank == rank)
