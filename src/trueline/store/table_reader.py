"""The tables of a Run whose rows are kept as they came, read one sealed part after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.schema.columns.rollouts import TableName
from trueline.store import file_names
from trueline.store.file_names import PartName, Problem
from trueline.store.log.listing import list_parts, name_missing_parts, read_journals
from trueline.store.log.part_files import PartFiles
from trueline.store.records.arrays import empty_table, from_numpy, to_numpy
from trueline.store.rows import TABLE_SCHEMAS
from trueline.store.table_rows import whole_table
from trueline.store.timeline import Timeline


@dataclass(frozen=True, slots=True)
class _TablePiece:
    """A part, or (``rows``) what is in a journal; ``attempt`` is the start of the job that wrote it."""

    rank: int
    attempt: int
    part: PartName | None = None
    rows: pa.Table | None = None


class TableReader:
    """One table of the Run at ``root``; damage is skipped and named in ``problems``."""

    def __init__(
        self, fs: AbstractFileSystem, root: str, table: TableName, problems: list[Problem], timeline: Timeline
    ) -> None:
        self._timeline = timeline
        self._schema = TABLE_SCHEMAS[table]
        self._files = PartFiles(fs, root, lambda part: table, self._schema)
        self._pieces: list[_TablePiece] = []
        journals = read_journals(fs, root, problems, rank_of=lambda name: _rank_of(name, table), schema=self._schema)
        parts = list_parts(fs, root, table, problems)
        for rank in sorted({*journals, *parts}):
            rank_parts, journal = sorted(parts.get(rank, [])), journals.get(rank)
            readable = [
                part
                for part, rows in zip(rank_parts, self._files.first(rank_parts, ["step"]), strict=True)
                if not _skipped(rows, problems)
            ]
            self._pieces += [_TablePiece(rank, part.attempt, part) for part in readable]
            name_missing_parts(table, rank, rank_parts, journal, problems)
            if journal is not None and journal.batches and journal.sequence not in file_names.numbers_of(rank_parts):
                rows = whole_table(table, journal.batches)
                self._pieces.append(_TablePiece(rank, journal.attempt(rank_parts), rows=rows))

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def pieces(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Columns of the rows of one part after the other, in the order in which each rank wrote them. Raises
        ``RunError`` where a part is gone since the Run was opened.
        """
        columns = self._schema.names if names is None else list(names)
        for piece in self._pieces:
            loaded = list(dict.fromkeys(["step", *columns]))
            rows = piece.rows
            if rows is None:
                assert piece.part is not None
                rows = self._files.again(piece.part, loaded)
            owned_T = self._timeline.owns(piece.attempt, to_numpy(rows["step"]))
            yield (rows if owned_T.all() else rows.filter(from_numpy(owned_T))).select(columns)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """All rows in one table."""
        columns = self._schema.names if names is None else list(names)
        empty = empty_table(pa.schema([self._schema.field(name) for name in columns]))
        return pa.concat_tables([empty, *self.pieces(columns)])


def _rank_of(name: str, table: str) -> int | None:
    match = file_names.table_journal(name)
    return match[0] if match is not None and match[1] == table else None


def _skipped(rows: pa.Table | Problem, problems: list[Problem]) -> bool:
    if isinstance(rows, Problem):
        problems.append(rows)
        return True
    return False
