"""The sealed parts of one table of a Run, read where they lie."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import RunError
from trueline.schema.text.documents import decode, encode
from trueline.schema.text.reading import why
from trueline.store import file_names
from trueline.store.file_names import PartName, Problem
from trueline.store.filesystem import filesystem_of
from trueline.store.log.durable import open_replacement
from trueline.store.log.listing import names_in
from trueline.store.log.merge import rows_within
from trueline.store.log.parts import DamagedPart, decode_and_name, footer_crc, read_columns
from trueline.store.migrate import to_current
from trueline.store.rows import KEYS, StepsInARow, worker_schema

VERSION = 1
"""Of what is kept of parts; another one is not read."""

READERS = min(8, os.cpu_count() or 1)
"""Parts that are read at once."""


_MANY = 8
"""Parts that are worth the start of threads: it takes 0.5 ms, and a part of 1,000 rows 3 ms to decode."""

Part = TypeVar("Part")
Result = TypeVar("Result")


def at_once(work: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """Results of ``work`` for each of the parts, in order, of several at once where they are many."""
    if len(parts) < _MANY:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        yield from pool.map(work, parts)


Keys = pa.Table | StepsInARow
"""Step and rank of rows."""


@dataclass(frozen=True, slots=True)
class PartFiles:
    """Parts of the Run at ``root`` under columns of ``schema``; ``folder_of`` gives the folder within the Run."""

    fs: AbstractFileSystem
    root: str
    folder_of: Callable[[PartName], str]
    schema: pa.Schema
    _footers: dict[PartName, int] = field(default_factory=dict[PartName, int], repr=False, compare=False)
    """Of the parts that were read whole."""
    _present: dict[PartName, frozenset[str]] = field(
        default_factory=dict[PartName, frozenset[str]], repr=False, compare=False
    )
    """The columns of the parts that were read whole."""
    _column_sets: dict[frozenset[str], frozenset[str]] = field(
        default_factory=dict[frozenset[str], frozenset[str]], repr=False, compare=False
    )
    """The distinct sets of columns: parts that hold the same columns share one."""
    _keys: dict[PartName, Keys] = field(default_factory=dict[PartName, Keys], repr=False, compare=False)

    def keys(self, parts: Sequence[PartName], names: Sequence[str]) -> Iterator[Keys | Problem]:
        """Step and rank of the rows of each part, or what is wrong with it, once its columns ``names`` were read to see
        whether it is damaged. A part of which these are known is not read again.
        """
        yield from at_once(functools.partial(self._once, names), parts)

    def first(self, parts: Sequence[PartName], names: Sequence[str]) -> Iterator[pa.Table | Problem]:
        """Columns of each part that was found just now, or what is wrong with it.

        Several are read at once: checksums and Parquet are worked out of Python's lock.
        """
        yield from at_once(functools.partial(self._first, names), parts)

    def _once(self, names: Sequence[str], part: PartName) -> Keys | Problem:
        if part not in self._keys:
            rows = self._first(names, part)
            if isinstance(rows, Problem):
                return rows
            self._keys[part] = StepsInARow.from_rows(rows) or rows.select(KEYS)
        return self._keys[part]

    def _first(self, names: Sequence[str], part: PartName) -> pa.Table | Problem:
        try:
            return self._read_current(part, names, self._decoded)
        except (DamagedPart, OSError, pa.ArrowException) as error:
            return Problem(f"{why(error)}; the part was skipped", file=self._path(part))

    def keep(self) -> None:
        """Keep in a Run of this machine what was read of its parts, for ``known_parts``: of those whose rows are steps
        in a row, as nearly all are. Raises ``OSError``.
        """
        if not isinstance(self.fs, LocalFileSystem):
            return
        column_sets = sorted(self._column_sets, key=sorted)
        entries: dict[str, list[Any]] = {}
        for part, rows in self._keys.items():
            if isinstance(rows, StepsInARow) and rows.rank == part.rank and part in self._footers:
                stamp = _stamp(posixpath.join(self.root, self._path(part)))
                entries[str(part)] = [
                    *(rows.first, rows.num, self._footers[part], column_sets.index(self._present[part])),
                    *(stamp or ()),
                ]
        document = encode({"version": VERSION, "held": [sorted(columns) for columns in column_sets], "parts": entries})
        path = posixpath.join(self.root, file_names.KNOWN_PARTS)
        with open(path, "rb") if os.path.exists(path) else contextlib.nullcontext() as file:
            # a Run that has ended is looked at again and again: its files are not touched for nothing
            if file is not None and file.read() == document:
                return
        open_replacement(path, document).close()

    def present(self, part: PartName) -> frozenset[str] | None:
        """The columns of a part that could be read before, where they are known: no other holds anything in it."""
        return self._present.get(part)

    def again(self, part: PartName, names: Sequence[str], *, row_range: range | None = None) -> pa.Table:
        """Columns of a part that could be read before, of the rows ``row_range`` (None: all).

        Raises ``RunError`` where it is gone or damaged since then.
        """
        try:
            return self._read_current(part, names, functools.partial(self._columns, row_range), row_range=row_range)
        except (DamagedPart, OSError, pa.ArrowException) as error:
            raise RunError(
                f"{self._path(part)} has changed since the Run was opened ({why(error)}). Open the Run again."
            ) from None

    def _read_current(
        self,
        part: PartName,
        names: Sequence[str],
        decode_columns: Callable[[PartName, Sequence[str]], pa.Table],
        *,
        row_range: range | None = None,
    ) -> pa.Table:
        try:
            rows = decode_columns(part, names)
        except FileNotFoundError:
            # a rank of a job that goes on merges small parts into larger ones while somebody reads
            whole = self._merged_since(part)
            if whole is None:
                raise
            rows = rows_within(self._decoded(whole, names), whole, part)
            rows = rows if row_range is None else rows.slice(row_range.start, len(row_range))
        return to_current(rows, self.schema, names)

    def _decoded(self, part: PartName, names: Sequence[str]) -> pa.Table:
        data = self.fs.cat_file(posixpath.join(self.root, self._path(part)))
        rows, present = decode_and_name(data, part, names)
        self._footers[part] = footer_crc(pa.BufferReader(data))
        self._present[part] = self._column_sets.setdefault(present, present)
        return rows

    def _columns(self, row_range: range | None, part: PartName, names: Sequence[str]) -> pa.Table:
        # columns alone are read only where the checksum of the whole was right once, and of local files
        if part not in self._footers or not isinstance(self.fs, LocalFileSystem):
            rows = self._decoded(part, names)
            return rows if row_range is None else rows.slice(row_range.start, len(row_range))
        path = posixpath.join(self.root, self._path(part))
        rows, first = read_columns(path, names, footer=self._footers[part], row_range=row_range)
        return rows if row_range is None else rows.slice(row_range.start - first, len(row_range))

    def _merged_since(self, part: PartName) -> PartName | None:
        """The part that has taken the place of one that was there when the Run was opened."""
        present = map(PartName.parse, names_in(self.fs, posixpath.join(self.root, self.folder_of(part))))
        holding = (other_part for other_part in present if other_part and other_part.rank == part.rank)
        return next((other_part for other_part in holding if {*part.numbers} < {*other_part.numbers}), None)

    def _path(self, part: PartName) -> str:
        return posixpath.join(self.folder_of(part), str(part))


def known_parts(path: str | os.PathLike[str]) -> PartFiles | None:
    """Parts as ``PartFiles.keep`` has kept them of ``workers`` rows of the Run at ``path``, less those whose files
    were touched since; None where there is nothing, or not what was written.
    """
    fs, root = filesystem_of(os.fspath(path))
    if not isinstance(fs, LocalFileSystem):
        return None
    files = PartFiles(fs, root, lambda part: file_names.WORKERS_DIR, worker_schema())
    try:
        with open(posixpath.join(root, file_names.KNOWN_PARTS), "rb") as file:
            document, sealed = decode(file.read())
        # nothing here is needed: what does not fit is worked out anew from the parts
        if not sealed or document["version"] != VERSION:
            return None
        column_sets = [frozenset(map(str, columns)) for columns in document["held"]]
        files._column_sets.update({columns: columns for columns in column_sets})
        for name, (first, num, footer, present, *stamp) in document["parts"].items():
            part = PartName.parse(name)
            if part is not None and stamp == _stamp(posixpath.join(root, files._path(part))):
                files._footers[part], files._present[part] = int(footer), column_sets[present]
                files._keys[part] = StepsInARow(part.rank, int(first), int(num))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return files


def _stamp(path: str) -> list[int] | None:
    """By what a file is known not to have been touched; None where it is gone."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]
