"""The recorded steps of a Run, found on first use and read piece by piece: only what is asked for is ever in memory.

T rows of a piece (a sealed part or what is in a journal), P rows that were selected of them, R rows of the answer.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem

from trueline.schema.site import Site
from trueline.store import file_names
from trueline.store.file_names import PartName, Problem
from trueline.store.log.listing import list_parts, name_missing_parts, names_in, read_journals
from trueline.store.log.part_files import PartFiles
from trueline.store.migrate import to_current
from trueline.store.records.arrays import contiguous, empty_table, from_numpy, from_values, to_numpy
from trueline.store.records.step_parts import MEASURED_NAMES, latest
from trueline.store.rows import RECORD_SCHEMA
from trueline.store.timeline import Timeline

SHARED_NAMES: tuple[str, ...] = ("numel", *MEASURED_NAMES, "tensor")
"""Columns that a row with ``same_as`` takes from the row that it refers to."""

_KEYS = ("step", "rank", "row")
_SITE_NAMES = ["step", "micro", "rank", "phase", "name", "call", "slot"]


@dataclass(frozen=True, slots=True)
class _RecordPiece:
    """The steps [S] int64, ascending, of one rank that a part or (``rows``) a journal has and no later piece has."""

    rank: int
    steps: np.ndarray
    part: PartName | None = None
    rows: pa.Table | None = None


class RecordReader:
    """Recorded steps of the Run at ``root``; of several starts of its job ``timeline`` says which count. Damage is
    skipped and named in ``problems`` when it is met.
    """

    def __init__(
        self, fs: AbstractFileSystem, root: str, problems: list[Problem], timeline: Timeline | None = None
    ) -> None:
        timeline = timeline or Timeline()
        self._files = PartFiles(fs, root, lambda part: _folder(part.rank), RECORD_SCHEMA)
        # Journals go first: a step that is sealed meanwhile is then seen twice, not missed.
        journals = read_journals(fs, root, problems, rank_of=file_names.records_journal_rank, schema=RECORD_SCHEMA)
        folders = {file_names.folder_rank(name) for name in names_in(fs, posixpath.join(root, file_names.RECORDS_DIR))}
        self._pieces: list[_RecordPiece] = []
        for rank in sorted({rank for rank in folders if rank is not None} | set(journals)):
            folder = _folder(rank)
            parts = sorted(list_parts(fs, root, folder, problems).get(rank, []))
            pieces: list[_RecordPiece] = []
            for part, rows in zip(parts, self._files.first(parts, ["step"]), strict=True):
                if isinstance(rows, Problem):
                    problems.append(rows)
                else:
                    pieces.append(_RecordPiece(rank, _owned_steps(_steps(rows), part.attempt, timeline), part))
            journal = journals.get(rank)
            name_missing_parts(folder, rank, parts, journal, problems)
            if journal is not None and journal.batches:
                rows = _journal_rows(journal.batches)
                pieces.append(
                    _RecordPiece(rank, _owned_steps(_steps(rows), journal.attempt(parts), timeline), rows=rows)
                )
            self._pieces += _without_overwritten(pieces)

    @property
    def ranks(self) -> list[int]:
        """Ranks that recorded, ascending."""
        return sorted({piece.rank for piece in self._pieces})

    @property
    def steps(self) -> np.ndarray:
        """[S] int64, distinct and ascending."""
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(piece.steps for piece in self._pieces)]))

    def read(
        self,
        *,
        steps: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
        names: Sequence[str] | None = None,
        phases: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        resolve: bool = True,
    ) -> pa.Table:
        """[R] rows; see ``Run.records``."""
        names_wanted = RECORD_SCHEMA.names if columns is None else list(columns)
        loaded = [name for name in RECORD_SCHEMA.names if name in {*names_wanted, *_KEYS}]
        chosen_steps = None if steps is None else np.asarray(list(steps), dtype=np.int64)
        tables = [empty_table(_schema(loaded))]
        for piece in self._pieces:
            alive = piece.steps if chosen_steps is None else np.intersect1d(piece.steps, chosen_steps)
            if len(alive) and (ranks is None or piece.rank in ranks):
                tables.append(self._select(piece, alive, names, phases, loaded, resolve=resolve))
        table = pa.concat_tables(tables)
        order = np.lexsort([to_numpy(table[name]) for name in reversed(_KEYS)])
        if (np.diff(order) != 1).any():
            table = table.take(from_numpy(order))
        return table.select(names_wanted)

    def at(self, site: Site) -> pa.Table:
        """[R] rows at a Site under all columns."""
        rows = self.read(steps=[site.step], ranks=[site.rank], names=[_literal(site.name)], phases=[site.phase])
        is_at_site = [site_of(row) == site for row in rows.select(_SITE_NAMES).to_pylist()]
        return rows.filter(from_numpy(np.array(is_at_site, dtype=np.bool_)))

    def _select(
        self,
        piece: _RecordPiece,
        steps: np.ndarray,
        names: Sequence[str] | None,
        phases: Collection[str] | None,
        loaded: list[str],
        *,
        resolve: bool,
    ) -> pa.Table:
        shared = [name for name in loaded if name in SHARED_NAMES] if resolve else []
        rows = self._load(piece, list(dict.fromkeys([*loaded, *_KEYS, "name", "phase", "same_as"])))
        wanted_T = np.isin(to_numpy(rows["step"]), steps)
        if names is not None:
            wanted_T &= _matches(rows["name"], names)
        if phases is not None:
            wanted_T &= _is_in(rows["phase"], phases)
        at_P = np.flatnonzero(wanted_T)
        selected = rows.select(loaded).take(from_numpy(at_P))
        if shared:
            source_P = _sources(rows, at_P)
            for name in shared:
                own_P = to_numpy(selected[name].is_valid())
                values = rows[name].take(from_numpy(np.where(own_P, at_P, source_P)))
                selected = selected.set_column(loaded.index(name), RECORD_SCHEMA.field(name), values)
        return selected.cast(_schema(loaded))

    def _load(self, piece: _RecordPiece, names: list[str]) -> pa.Table:
        return piece.rows.select(names) if piece.part is None else self._files.again(piece.part, names)


def site_of(row: Mapping[str, Any]) -> Site:
    """The Site of a row of ``Run.records``, which must have step, micro, rank, phase, name, call and slot."""
    return Site(
        step=row["step"],
        micro=row["micro"] or 0,
        rank=row["rank"],
        phase=row["phase"] or "",
        name=row["name"] or "",
        call=row["call"] or 0,
        slot=row["slot"] or "",
    )


def _literal(name: str) -> str:
    """The glob that matches ``name`` and nothing else."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _journal_rows(batches: list[pa.RecordBatch]) -> pa.Table:
    tables = [pa.Table.from_batches([batch]) for batch in latest(batches)]
    return pa.concat_tables([to_current(table, RECORD_SCHEMA, RECORD_SCHEMA.names) for table in tables])


def _owned_steps(steps_S: np.ndarray, attempt: int, timeline: Timeline) -> np.ndarray:
    return steps_S[timeline.owns(attempt, steps_S)]


def _steps(rows: pa.Table) -> np.ndarray:
    """[S] int64, distinct and ascending."""
    return np.unique(to_numpy(rows["step"]))


def _folder(rank: int) -> str:
    return posixpath.join(file_names.RECORDS_DIR, file_names.rank_folder(rank))


def _without_overwritten(pieces: list[_RecordPiece]) -> list[_RecordPiece]:
    """Pieces of one rank, oldest first, without steps that were recorded again later."""
    pieces_left: list[_RecordPiece] = []
    later = np.empty(0, dtype=np.int64)
    for piece in reversed(pieces):
        pieces_left.append(_RecordPiece(piece.rank, np.setdiff1d(piece.steps, later), piece.part, piece.rows))
        later = np.union1d(later, piece.steps)
    return pieces_left[::-1]


def _matches(names: pa.ChunkedArray, globs: Sequence[str]) -> np.ndarray:
    """[T] bool: whether a name fits one of the globs."""
    fitting = [name for name in pc.unique(names).to_pylist() if any(fnmatchcase(name or "", glob) for glob in globs)]
    return _is_in(names, fitting)


def _is_in(texts: pa.ChunkedArray, choices: Collection[str]) -> np.ndarray:
    """[T] bool: whether a text is one of those."""
    return to_numpy(pc.is_in(texts, from_values(list(choices), pa.string())))


def _sources(rows: pa.Table, at_P: np.ndarray) -> np.ndarray:
    """[P] int64: which of the T rows has the numbers of each selected one; itself where that row is not there."""
    step_T, row_T = to_numpy(rows["step"]), to_numpy(rows["row"])
    same_P = contiguous(rows["same_as"]).take(from_numpy(at_P))
    refers_P = to_numpy(same_P.is_valid())
    order_T = np.lexsort((row_T, step_T))
    _, step_index_T = np.unique(step_T, return_inverse=True)
    # One sorted key of step and row, so that a single search finds all rows that are referred to.
    key_T = (step_index_T.astype(np.int64) << 32 | row_T)[order_T]
    wanted_keys = step_index_T[at_P[refers_P]].astype(np.int64) << 32 | to_numpy(same_P.drop_null())
    index = np.minimum(np.searchsorted(key_T, wanted_keys), max(len(key_T) - 1, 0))
    source_P = at_P.copy()
    source_P[refers_P] = np.where(key_T[index] == wanted_keys, order_T[index], at_P[refers_P])
    return source_P


def _schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([RECORD_SCHEMA.field(name) for name in names])
