"""The pieces of rows that a Run consists of, sealed or still in journals, in the order in which they were written.

Of parts only the step and the rank of each row are kept at once, after the numbers have been read once to see whether
they are damaged; values stay in their files until they are asked for: those of a long Run do not fit into memory. A
column that no part has costs nothing.

T pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.schema.errors import RunError
from trueline.store import file_names
from trueline.store.file_names import PartName, Problem
from trueline.store.log.journal import JournalContent
from trueline.store.log.listing import list_parts, name_missing_parts, read_journals
from trueline.store.log.part_files import Keys, PartFiles, at_once
from trueline.store.migrate import to_current
from trueline.store.records.arrays import empty_table, from_numpy, to_numpy
from trueline.store.rows import KEYS, GridOrder, MergeOrder, StepsInARow, merge_batches, scalar_names, worker_schema
from trueline.store.timeline import Timeline

MAX_VALUES = 2**31 - 1
"""Values that all lists of a column can have together: Arrow's list offsets are int32."""


@dataclass(frozen=True, slots=True)
class _RowPiece:
    """Rows of a part, of which only ``KEYS`` are held, or (``part`` None) all there is of a journal; of a part
    ``own_T`` [T] bool says which of its rows these are, None: all.
    """

    rows: Keys
    part: PartName | None = None
    own_T: pa.Array | None = None
    steps: tuple[int, int] = (0, -1)
    """The first and the last of them."""

    @classmethod
    def from_rows(cls, rows: Keys, part: PartName | None = None, own_T: pa.Array | None = None) -> _RowPiece:
        """A piece of which there is a row."""
        step_T = _steps_of(rows)
        return cls(rows, part, own_T, (int(step_T.min()), int(step_T.max())))

    def cut(self, end: int, first: int | None) -> _RowPiece | None:
        """The part of it in steps from ``first`` (None: the first) to before ``end``; None where nothing is."""
        if self.steps[0] >= end or (first is not None and self.steps[1] < first):
            return None
        if self.steps[1] < end and (first is None or self.steps[0] >= first):
            return self
        step_T = _steps_of(self.rows)
        mask_T = step_T < end if first is None else (step_T < end) & (step_T >= first)
        own_T = np.ones(len(step_T), dtype=bool) if self.own_T is None else to_numpy(self.own_T).copy()
        own_T[own_T] = mask_T
        return (
            _RowPiece.from_rows(_select_rows(self.rows, mask_T), self.part, from_numpy(own_T)) if mask_T.any() else None
        )


@dataclass(slots=True)
class Pieces:
    """All row pieces of a Run, oldest first within each rank, and what had to be skipped.

    ``unclosed`` are the ranks that have a journal.
    """

    files: PartFiles
    timeline: Timeline = field(default_factory=Timeline)
    problems: list[Problem] = field(default_factory=list[Problem])
    unclosed: list[int] = field(default_factory=list)
    _pieces: list[_RowPiece] = field(default_factory=list)

    def columns(self, names: Sequence[str], steps: Collection[int] | None = None) -> pa.Table:
        """[T] values of columns; with ``steps``, rows of others in parts give null instead of what they hold.

        Raises ``RunError`` where a part is gone since the Run was opened, or there are more values than fit.
        """
        wanted_steps = None if steps is None else np.asarray(list(steps), dtype=np.int64)
        schema = pa.schema([worker_schema().field(name) for name in names])
        run_map = map if set(names) <= set(KEYS) else at_once
        rows = run_map(lambda piece: self._rows(piece, names, wanted_steps), self._pieces)
        table = pa.concat_tables([empty_table(schema), *rows])
        for name in names:
            if sum(map(_num_values, table[name].chunks)) > MAX_VALUES:
                raise RunError(
                    f"Column '{name}' has more than {MAX_VALUES} values in all. Read it for some steps only, with "
                    "Run.stack(column, steps=...)."
                )
        return table

    def present(self) -> set[str]:
        """Names of the columns that hold anything, as far as that is known without reading them."""
        return set().union(*(self._present(piece) for piece in self._pieces))

    def measured(self, name: str) -> pa.ChunkedArray:
        """[T] null where a column was not measured; the values of one part at a time are read for it.

        Raises ``RunError`` where a part is gone since the Run was opened.
        """
        absent = (to_numpy(self._rows(piece, [name], None)[name].is_null()) for piece in self._pieces)
        return pa.chunked_array(
            [from_numpy(absent_T.view(np.uint8), absent_N=absent_T) for absent_T in absent], pa.uint8()
        )

    def has(self, name: str) -> bool:
        """True if any row has a value of a column. Raises ``RunError`` where a part is gone meanwhile."""
        columns = (self._rows(piece, [name], None)[name] for piece in self._pieces)
        return any(column.null_count < len(column) for column in columns)

    def _rows(self, piece: _RowPiece, names: Sequence[str], wanted_steps: np.ndarray | None) -> pa.Table:
        if piece.part is None or set(names) <= set(KEYS):
            return _table(piece.rows).select(list(names))
        # nothing to read: the part holds none of these columns
        if self._present(piece).isdisjoint(names):
            return to_current(_table(piece.rows).select([]), worker_schema(), names)
        wanted_T = None if wanted_steps is None else np.isin(_steps_of(piece.rows), wanted_steps)
        if wanted_T is not None and not wanted_T.any():
            return to_current(_table(piece.rows).select([]), worker_schema(), names)
        row_range = None if piece.own_T is None else _span(piece.own_T)
        rows = self.files.again(piece.part, names, row_range=row_range)
        rows = rows if row_range is None else rows.filter(piece.own_T.slice(row_range.start, len(row_range)))
        # as many rows as the piece has, null where not asked for: pieces of all columns stay aligned
        return rows if wanted_T is None else rows.take(from_numpy(np.arange(len(wanted_T)), absent_N=~wanted_T))

    def _present(self, piece: _RowPiece) -> frozenset[str]:
        names = None if piece.part is None else self.files.present(piece.part)
        return frozenset(worker_schema().names) if names is None else names

    def ends(self, rank: int) -> np.ndarray:
        """[..] int64, ascending: the last steps of the parts of a rank."""
        parts = (piece for piece in self._pieces if piece.part is not None and piece.part.rank == rank)
        return np.unique(np.array([piece.steps[1] for piece in parts], dtype=np.int64))

    def cut(self, first: int | None, end: int) -> Pieces:
        """The pieces without rows of steps before ``first`` (None: of none) and of ``end`` and later ones."""
        cut = Pieces(self.files, self.timeline, self.problems, self.unclosed)
        cut._pieces += [part for piece in self._pieces if (part := piece.cut(end, first)) is not None]
        return cut

    def order(self) -> MergeOrder:
        """The order in which pieces are merged to rows."""
        spans: list[StepsInARow] = []
        for piece in self._pieces:
            if not isinstance(rows := piece.rows, StepsInARow):
                break
            if spans and rows.rank == spans[-1].rank and rows.first == spans[-1].first + spans[-1].num:
                before = spans.pop()
                rows = StepsInARow(rows.rank, before.first, before.num + rows.num)
            spans.append(rows)
        else:
            ranks = [span.rank for span in spans]
            # all ranks have the same steps: the order needs no sorting of a hundred million keys
            if len({(span.first, span.num) for span in spans}) == 1 and ranks == sorted(set(ranks)):
                return GridOrder(np.array(ranks, dtype=np.int32), spans[0].first, spans[0].num)
        return MergeOrder(*(to_numpy(column) for column in self.columns(KEYS).columns))

    def add_parts(self, parts: Iterable[tuple[PartName, Keys | Problem]]) -> set[int]:
        """Take the parts of one rank, with what was read of each, in order; the numbers of those that could be read.

        Where the parts that were merged into a part still exist, their writer was about to remove them.
        """
        readable: set[int] = set()
        merged: set[int] = set()
        for part, rows in parts:
            # its rows are in the merged part already
            if merged.issuperset(part.numbers):
                continue
            if isinstance(rows, Problem):
                self.problems.append(rows)
            else:
                self._take(rows, part.attempt, part)
                readable.update(part.numbers)
                merged.update(part.numbers if len(part.numbers) > 1 else ())
        return readable

    def add_journal(self, journal: JournalContent, attempt: int) -> None:
        """Take what is in the journal of one rank, which is younger than all of its parts."""
        if journal.batches:
            self._take(to_current(merge_batches(journal.batches), worker_schema(), worker_schema().names), attempt)

    def _take(self, rows: Keys, attempt: int, part: PartName | None = None) -> None:
        own_T = self.timeline.owns(attempt, _steps_of(rows))
        if own_T.all():
            self._pieces += [_RowPiece.from_rows(rows, part)] if len(rows) else []
        elif own_T.any():
            mask = from_numpy(own_T)
            self._pieces.append(_RowPiece.from_rows(_select_rows(rows, own_T), part, mask))


def read_pieces(
    fs: AbstractFileSystem,
    root: str,
    first_steps: Sequence[int] = (),
    *,
    known_parts: PartFiles | None = None,
    num_starts: int | None = None,
) -> Pieces:
    """Every readable row piece of the Run at ``root`` whose job began with ``first_steps``, one a start; those of the
    first ``num_starts`` alone. Parts that are ``known_parts`` are not read again.

    Journals are read before parts are listed: a row that is sealed in between is then seen twice, which merging undoes;
    the other way round it would not be seen at all.
    """
    pieces = Pieces(known_parts or PartFiles(fs, root, lambda part: file_names.WORKERS_DIR, worker_schema()))
    journals = read_journals(fs, root, pieces.problems, rank_of=file_names.journal_rank, schema=worker_schema())
    pieces.unclosed = sorted(journals)
    parts = list_parts(fs, root, file_names.WORKERS_DIR, pieces.problems)
    attempts = {rank: journal.attempt(parts.get(rank, [])) for rank, journal in journals.items()}
    if num_starts is not None:
        journals = {rank: journal for rank, journal in journals.items() if attempts[rank] < num_starts}
        parts = {rank: [part for part in of_rank if part.attempt < num_starts] for rank, of_rank in parts.items()}
    begun_attempts = {attempts[rank] for rank, journal in journals.items() if journal.batches}
    begun_attempts |= {part.attempt for rank_parts in parts.values() for part in rank_parts}
    # A start that ended before it had written a row hides nothing of the starts before it.
    pieces.timeline = Timeline(first_steps, begun_attempts)
    ordered = {rank: sorted(parts[rank], key=lambda part: (part.sequence, -part.last)) for rank in sorted(parts)}
    keys = pieces.files.keys([part for rank_parts in ordered.values() for part in rank_parts], scalar_names())
    for rank in sorted(set(journals) | set(parts)):
        journal = journals.get(rank)
        sealed = pieces.add_parts(zip(ordered.get(rank, []), keys))  # noqa: B905 - goes on with those of the next rank
        name_missing_parts(file_names.WORKERS_DIR, rank, parts.get(rank, []), journal, pieces.problems)
        if journal is not None and journal.sequence not in sealed:
            pieces.add_journal(journal, attempts[rank])
    return pieces


def _table(rows: Keys) -> pa.Table:
    return rows.table() if isinstance(rows, StepsInARow) else rows


def _steps_of(rows: Keys) -> np.ndarray:
    return rows.steps() if isinstance(rows, StepsInARow) else to_numpy(rows["step"])


def _select_rows(rows: Keys, chosen_T: np.ndarray) -> Keys:
    """The rows that are set in ``chosen_T``, which of steps in a row are in a row."""
    if not isinstance(rows, StepsInARow):
        return rows.filter(from_numpy(chosen_T))
    return StepsInARow(rows.rank, rows.first + int(np.argmax(chosen_T)), int(np.count_nonzero(chosen_T)))


def _span(own_T: pa.Array) -> range:
    """The rows from the first to the last that are set in ``own_T``."""
    at = np.flatnonzero(to_numpy(own_T))
    return range(int(at[0]), int(at[-1]) + 1)


def _num_values(chunk: pa.Array) -> int:
    if not pa.types.is_list(chunk.type) or not len(chunk):
        return 0
    return chunk.offsets[-1].as_py() - chunk.offsets[0].as_py()
