"""The pieces of rows that a Run consists of, sealed or still in journals, in the order in which they were written.

Scalars are few bytes a row and are read at once; lists stay in their files until they are asked for: sketches of a long
Run do not fit into memory.

T pieces.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.schema.errors import RunError
from trueline.store import layout
from trueline.store.journal import JournalContent, read_journal
from trueline.store.layout import PartName
from trueline.store.migrate import to_current
from trueline.store.parts import DamagedPart, decode_part
from trueline.store.rows import SCALAR_NAMES, WORKER_SCHEMA, merge_batches

MAX_VALUES = 2**31 - 1
"""Values that all lists of a column can have together: Arrow's list offsets are int32."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a part, of which only the scalars are held, or (``part`` None) all there is of a journal."""

    rows: pa.Table
    part: PartName | None = None


@dataclass(slots=True)
class Pieces:
    """All row pieces of the Run at ``root``, oldest first within each rank, and what had to be skipped.

    ``unclosed`` are the ranks that have a journal.
    """

    fs: AbstractFileSystem
    root: str
    problems: list[str] = field(default_factory=list)
    unclosed: list[int] = field(default_factory=list)
    _pieces: list[_Piece] = field(default_factory=list)

    def columns(self, names: Sequence[str], steps: Collection[int] | None = None) -> pa.Table:
        """[T] values of columns; with ``steps``, parts without any of these may give null instead of what they hold.

        Raises ``RunError`` where a part is gone since the Run was opened, or there are more values than fit.
        """
        wanted = None if steps is None else np.asarray(list(steps), dtype=np.int64)
        schema = pa.schema([WORKER_SCHEMA.field(name) for name in names])
        table = pa.concat_tables([schema.empty_table(), *(self._rows(piece, names, wanted) for piece in self._pieces)])
        for name in names:
            if sum(map(_num_values, table[name].chunks)) > MAX_VALUES:
                raise RunError(
                    f"Column '{name}' has more than {MAX_VALUES} values in all. Read it for some steps only, with "
                    "Run.stack(column, steps=...)."
                )
        return table

    def _rows(self, piece: _Piece, names: Sequence[str], wanted: np.ndarray | None) -> pa.Table:
        if piece.part is None or set(names) <= set(SCALAR_NAMES):
            return piece.rows.select(list(names))
        if wanted is not None and not np.isin(piece.rows["step"].to_numpy(), wanted).any():
            return to_current(piece.rows.select([]), names)
        try:
            return self._read_part(piece.part, names)
        except (DamagedPart, OSError) as error:
            raise RunError(
                f"workers/{piece.part} has changed since the Run was opened ({error}). Open the Run again."
            ) from None

    def _read_part(self, part: PartName, names: Sequence[str]) -> pa.Table:
        data = self.fs.cat_file(posixpath.join(self.root, layout.WORKERS_DIR, str(part)))
        # 'step' comes along so that the number of rows is known even where a part has none of the columns.
        return to_current(decode_part(data, part, ["step", *names]), names)

    def add_parts(self, parts: list[PartName]) -> set[int]:
        """Take the parts of one rank, in order; the sequence numbers of those that could be read."""
        read: set[int] = set()
        for part in sorted(parts):
            try:
                self._pieces.append(_Piece(self._read_part(part, SCALAR_NAMES), part))
                read.add(part.sequence)
            except (DamagedPart, OSError) as error:
                self.problems.append(f"workers/{part}: {error}; the part was skipped")
        return read

    def add_journal(self, rank: int, journal: JournalContent) -> None:
        """Take what is in the journal of one rank, which is younger than all of its parts."""
        self.problems += [f"journal/{layout.journal_name(rank)}: {problem}" for problem in journal.problems]
        if journal.batches:
            self._pieces.append(_Piece(to_current(merge_batches(journal.batches), WORKER_SCHEMA.names)))


def read_pieces(fs: AbstractFileSystem, root: str) -> Pieces:
    """Every readable row piece of the Run at ``root``.

    Journals are read before parts are listed: a row that is sealed in between is then seen twice, which merging undoes;
    the other way round it would not be seen at all.
    """
    pieces = Pieces(fs, root)
    journals = _read_journals(fs, posixpath.join(root, layout.JOURNAL_DIR), pieces.problems)
    pieces.unclosed = sorted(journals)
    parts = _list_parts(fs, posixpath.join(root, layout.WORKERS_DIR), pieces.problems)
    for rank in sorted(set(journals) | set(parts)):
        journal = journals.get(rank)
        sealed = pieces.add_parts(parts.get(rank, []))
        _name_missing_parts(rank, parts.get(rank, []), journal, pieces.problems)
        if journal is not None and journal.sequence not in sealed:
            pieces.add_journal(rank, journal)
    return pieces


def names_in(fs: AbstractFileSystem, folder: str) -> list[str]:
    """Names of the entries of a folder, sorted; none where it does not exist."""
    try:
        entries = fs.ls(folder, detail=False, refresh=True)
    except FileNotFoundError:
        return []
    return sorted(posixpath.basename(entry.rstrip("/")) for entry in entries)


def _read_journals(fs: AbstractFileSystem, folder: str, problems: list[str]) -> dict[int, JournalContent]:
    journals: dict[int, JournalContent] = {}
    for name in names_in(fs, folder):
        rank = layout.journal_rank(name)
        if rank is None:
            continue
        try:
            journals[rank] = read_journal(fs.cat_file(posixpath.join(folder, name)))
        except FileNotFoundError:
            pass  # It was sealed since it was listed: its rows are in a part, and parts are listed later.
        except OSError as error:
            problems.append(f"journal/{name}: it cannot be read ({error}) and was skipped")
    return journals


def _list_parts(fs: AbstractFileSystem, folder: str, problems: list[str]) -> dict[int, list[PartName]]:
    parts: dict[int, list[PartName]] = {}
    for name in names_in(fs, folder):
        part = PartName.parse(name)
        if part is not None:
            parts.setdefault(part.rank, []).append(part)
        elif not name.endswith(layout.TEMPORARY_SUFFIX):
            problems.append(f"workers/{name}: it is not named like a part of a Run and was skipped")
    return parts


def _name_missing_parts(rank: int, parts: list[PartName], journal: JournalContent | None, problems: list[str]) -> None:
    present = {part.sequence for part in parts}
    after_last = max(present, default=-1) + 1
    if journal is not None and journal.sequence is not None:
        after_last = max(after_last, journal.sequence)
    missing = sorted(set(range(after_last)) - present)
    if missing:
        numbers = ", ".join(map(str, missing))
        problems.append(f"workers: part {numbers} of rank {rank} is missing, and the rows in it with it")


def _num_values(chunk: pa.Array) -> int:
    if not pa.types.is_list(chunk.type) or not len(chunk):
        return 0
    return chunk.offsets[-1].as_py() - chunk.offsets[0].as_py()
