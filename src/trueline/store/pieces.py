"""The pieces of rows that a Run consists of, sealed or still in journals, in the order in which they were written."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, field

import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.store import layout
from trueline.store.journal import JournalContent, read_journal
from trueline.store.layout import PartName
from trueline.store.parts import DamagedPart, decode_part
from trueline.store.rows import merge_batches


@dataclass(slots=True)
class Pieces:
    """Tables of row pieces, oldest first within each rank, what had to be skipped, and which ranks have a journal."""

    tables: list[pa.Table] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unclosed: list[int] = field(default_factory=list)


def read_pieces(fs: AbstractFileSystem, root: str) -> Pieces:
    """Every readable row piece of the Run at ``root``.

    Journals are read before parts are listed: a row that is sealed in between is then seen twice, which merging undoes;
    the other way round it would not be seen at all.
    """
    pieces = Pieces()
    journals = _read_journals(fs, posixpath.join(root, layout.JOURNAL_DIR))
    pieces.unclosed = sorted(journals)
    parts = _list_parts(fs, posixpath.join(root, layout.WORKERS_DIR), pieces.problems)
    for rank in sorted(set(journals) | set(parts)):
        journal = journals.get(rank)
        names = parts.get(rank, [])
        sealed = _read_parts(fs, posixpath.join(root, layout.WORKERS_DIR), names, pieces)
        _name_missing_parts(rank, names, journal, pieces.problems)
        if journal is not None and journal.sequence not in sealed:
            pieces.tables += [merge_batches(journal.batches)] if journal.batches else []
            pieces.problems += [f"journal/{layout.journal_name(rank)}: {problem}" for problem in journal.problems]
    return pieces


def names_in(fs: AbstractFileSystem, folder: str) -> list[str]:
    """Names of the entries of a folder, sorted; none where it does not exist."""
    try:
        entries = fs.ls(folder, detail=False, refresh=True)
    except FileNotFoundError:
        return []
    return sorted(posixpath.basename(entry.rstrip("/")) for entry in entries)


def _read_journals(fs: AbstractFileSystem, folder: str) -> dict[int, JournalContent]:
    journals: dict[int, JournalContent] = {}
    for name in names_in(fs, folder):
        rank = layout.journal_rank(name)
        # A journal that is gone since it was listed was sealed: its rows are in a part, and those are read later.
        with contextlib.suppress(FileNotFoundError):
            if rank is not None:
                journals[rank] = read_journal(fs.cat_file(posixpath.join(folder, name)))
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


def _read_parts(fs: AbstractFileSystem, folder: str, names: list[PartName], pieces: Pieces) -> set[int]:
    """Add the tables of the parts of one rank to ``pieces``; the sequence numbers of those that could be read."""
    read: set[int] = set()
    for name in sorted(names):
        try:
            pieces.tables.append(decode_part(fs.cat_file(posixpath.join(folder, str(name))), name))
            read.add(name.sequence)
        except (DamagedPart, OSError) as error:
            pieces.problems.append(f"workers/{name}: {error}; the part was skipped")
    return read


def _name_missing_parts(rank: int, names: list[PartName], journal: JournalContent | None, problems: list[str]) -> None:
    present = {name.sequence for name in names}
    after_last = max(present, default=-1) + 1
    if journal is not None and journal.sequence is not None:
        after_last = max(after_last, journal.sequence)
    missing = sorted(set(range(after_last)) - present)
    if missing:
        numbers = ", ".join(map(str, missing))
        problems.append(f"workers: part {numbers} of rank {rank} is missing, and the rows in it with it")
