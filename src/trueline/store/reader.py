"""Run: everything that one job recorded, read while the job still writes or long after.

T steps, N ranks, K values of a list column, R rows.
"""

from __future__ import annotations

import contextlib
import copy
import os
import posixpath
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from trueline.schema.columns.rollouts import TableName
from trueline.schema.columns.table import param_columns
from trueline.schema.errors import RunError
from trueline.schema.files.run_manifest import Manifest, RankEnv, unknown_keys
from trueline.schema.finding import Finding
from trueline.schema.text.reading import reading, shortened
from trueline.schema.text.secrets import without_credentials
from trueline.schema.text.shown import Shown, library
from trueline.store import file_names
from trueline.store.env_and_findings import name_unknown, read_env, read_findings
from trueline.store.file_names import Problem
from trueline.store.filesystem import filesystem_of
from trueline.store.log.listing import names_in
from trueline.store.log.part_files import PartFiles
from trueline.store.log.pieces import Pieces, read_pieces
from trueline.store.manifest import open_manifest
from trueline.store.query import answer
from trueline.store.records.arrays import from_numpy, to_numpy
from trueline.store.records.recorded_steps import UNREADABLE, RecordedSteps
from trueline.store.rows import TABLE_SCHEMAS, require_column, scalar_names, worker_names, worker_schema
from trueline.store.table_reader import TableReader

_LONGEST = "sketch"
"""The column whose lists may not fit into memory together."""


def _together(name: str) -> set[str]:
    """The column ``name`` and those that are asked for after it, of numbers or of short lists: reading each one alone
    would open every part.
    """
    if name.startswith("group_"):
        return {column for column in worker_names() if column.startswith("group_")}
    return set(scalar_names()) if name in scalar_names() else {name}


class Run(RecordedSteps, Shown):
    """A Run at a path or fsspec URL, as it was at the moment of opening; it may be written to meanwhile.

    Raises ``RunError`` where there is none, or one that this version cannot read. Whatever in it is damaged is skipped
    and named in ``problems``; a Run without rows is legal. ``parts`` are those of a Run that was opened at the same
    path before: sealed parts do not change, so those that it has read are not read again to look for damage.
    """

    path: str
    manifest: Manifest
    env: dict[int, RankEnv]
    """The environment of each rank; a rank without one is missing."""
    ranks: list[int]
    """Global ranks that wrote rows or an environment, ascending: the columns of ``pivot`` and ``stack``."""
    steps: np.ndarray
    """[T] int64, distinct and ascending."""
    problems: list[Problem]
    """One line for each thing that was skipped or is missing."""
    unclosed: list[int]
    """Ranks that have not closed their files: they are still writing, or were killed."""
    live_findings: list[Finding]
    """The findings of live checks while the job ran, in order per rank."""

    def __init__(self, path: str | os.PathLike[str], *, parts: PartFiles | None = None) -> None:
        self._address = os.fspath(path)
        self.path = without_credentials(self._address)
        with reading(f"'{shortened(self.path)}'", UNREADABLE, error=RunError):
            self._open(parts)

    def _open(self, parts: PartFiles | None) -> None:
        self._fs, self._root = filesystem_of(self._address)
        self.manifest = open_manifest(self._fs, self._root, self.path)
        first_steps = [attempt.step for attempt in self.manifest.attempts]
        self._take(read_pieces(self._fs, self._root, first_steps, known_parts=parts))
        self.problems = self._pieces.problems
        self.unclosed = self._pieces.unclosed
        self.problems += name_unknown("manifest.json", unknown_keys(self.manifest))
        self.env = read_env(self._fs, self._root, self.problems)
        self.live_findings = read_findings(self._fs, self._root, self.problems)
        self.ranks = sorted({*self._rows.last_of()} | set(self.env))
        self._choose_lists()
        self._name_missing_ranks()

    def _take(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._timeline = pieces.timeline
        self._rows = pieces.order()
        self._present = pieces.present()
        self._columns: dict[str, pa.Array] = {}
        self.steps = self._rows.distinct_steps()

    def before(self, step: int) -> Run:
        """The Run without the rows of ``step`` and later ones; recorded steps are all there."""
        return self._cut(None, step)

    def between(self, first: int, end: int) -> Run:
        """The Run with the rows of the steps from ``first`` to before ``end`` only. Recorded steps are all there, and
        so are the ranks, also those without a row.
        """
        return self._cut(first, end)

    def _cut(self, first: int | None, end: int) -> Run:
        part = copy.copy(self)
        # Cached properties are copied with the object, and would go on about all rows.
        for derived in ("_step_index", "_rank_index", "last_steps"):
            part.__dict__.pop(derived, None)
        part._take(self._pieces.cut(first, end))
        begin = 0 if first is None else self._rows.from_step(first)
        part._columns = {name: values.slice(begin, len(part._rows)) for name, values in self._columns.items()}
        return part

    def left_before(self, restart: int) -> Run:
        """The Run as the starts before the one that went on from step ``restart`` had left it: with the steps that this
        one and later ones have repeated, and none of theirs.
        """
        first_steps = [attempt.step for attempt in self.manifest.attempts]
        part = copy.copy(self)
        for derived in ("_step_index", "_rank_index", "last_steps"):
            part.__dict__.pop(derived, None)
        num_starts = first_steps.index(restart, 1)
        part._take(read_pieces(self._fs, self._root, first_steps, known_parts=self.parts, num_starts=num_starts))
        return part

    @property
    def parts(self) -> PartFiles:
        """Sealed parts as they were read, for the next Run that is opened at this path."""
        return self._pieces.files

    @property
    def restarts(self) -> list[int]:
        """The steps, ascending, at which the job was started again and went on from."""
        return self._timeline.restarts

    @cached_property
    def models(self) -> dict[str, str]:
        """Paths of the Runs of the job's further models, by name."""
        root = posixpath.join(self._root, file_names.MODELS_DIR)
        names = names_in(self._fs, root)
        names = [name for name in names if self._fs.exists(posixpath.join(root, name, file_names.MANIFEST))]
        # groups of ranks of a further model are listed by its own Run
        names = [name for name in names if name.partition(file_names.OF_GROUP)[0] == name]
        return {name: posixpath.join(self.path, file_names.MODELS_DIR, name) for name in names}

    @property
    def is_further_model(self) -> bool:
        """Whether this is the Run of a further model of its job, below the Run of the first."""
        return posixpath.basename(posixpath.dirname(self._root.rstrip("/"))) == file_names.MODELS_DIR

    @cached_property
    def groups(self) -> list[str]:
        """Paths of the Runs beside this one, of the first group of ranks, which the further groups of the same start of
        the job wrote: their ranks average apart from these.
        """
        return [] if file_names.OF_GROUP in posixpath.basename(self._root) else self.beside

    @cached_property
    def beside(self) -> list[str]:
        """Paths of the Runs of all other groups of ranks of the same start of the job, the first group's first."""
        start = self.manifest.attempts[-1].id if self.manifest.attempts else ""
        base, separator, lead = self.path.rstrip("/").rpartition(file_names.OF_GROUP)
        # a Run may be called so by its user: only a number behind the mark names a group
        first = base if separator and lead.isdecimal() else self.path.rstrip("/")
        if not start or len(self.ranks) == self.world_size:
            return []
        names = names_in(self._fs, posixpath.dirname(self._root.rstrip("/")))
        prefix = posixpath.basename(first) + file_names.OF_GROUP
        leads = sorted(
            int(name[len(prefix) :]) for name in names if name.startswith(prefix) and name[len(prefix) :].isdecimal()
        )
        paths = [first, *(f"{first}{file_names.OF_GROUP}{lead}" for lead in leads)]
        return [path for path in paths if path != self.path.rstrip("/") and _start_of(path) == start]

    @property
    def world_size(self) -> int:
        """The number of ranks of the job, whether or not each wrote something."""
        return self.manifest.world_size

    @cached_property
    def _step_index(self) -> np.ndarray:
        return np.searchsorted(self.steps, self._rows.steps)

    @cached_property
    def _rank_index(self) -> np.ndarray:
        return np.searchsorted(np.asarray(self.ranks), self._rows.ranks)

    @cached_property
    def last_steps(self) -> dict[int, int]:
        """The last step of each rank that wrote any."""
        return self._rows.last_of()

    def table(self) -> pa.Table:
        """[R] all rows under all columns of ``schema.workers``, sorted by (step, rank); null where not measured."""
        self._load([name for name in worker_names() if name in self._present and name not in self._columns])
        return pa.table([self.column(name) for name in worker_names()], schema=worker_schema())

    def to_pandas(self) -> Any:
        """``table()`` as a ``pandas.DataFrame``. Raises ``InputError`` where pandas is not installed."""
        library("pandas")
        return self.table().to_pandas()

    def to_polars(self) -> Any:
        """``table()`` as a ``polars.DataFrame``. Raises ``InputError`` where Polars is not installed."""
        return library("polars").from_arrow(self.table())

    def column(self, name: str) -> pa.Array:
        """[R] one column of ``table()``, merged on first use; null where not measured."""
        if name not in self._columns:
            require_column(name, worker_names())
            if name not in self._present:
                return pa.nulls(len(self._rows), worker_schema().field(name).type)
            together = _together(name)
            self._load([column_name for column_name in worker_names() if column_name in together & self._present])
        return self._columns[name]

    def load(self, names: Collection[str]) -> None:
        """Merge those of the columns ``names`` that the Run has, reading each part once for all of them. Where one
        cannot be read, whoever asks for it is told.
        """
        missing = (self._present & set(names)) - self._columns.keys() - {_LONGEST}
        with contextlib.suppress(RunError):
            if missing:
                self._load([name for name in worker_names() if name in missing])

    def take_loaded(self, parts: Sequence[Run]) -> None:
        """Take the columns that all of ``parts`` have loaded, so that they have them no more. These come one after the
        other, the last one ends with this Run, and the first one does not begin after it.
        """
        first = int(self.steps[0])
        starts = [part._rows.from_step(first) for part in parts]
        for name in set[str].intersection(*(set(part._columns) for part in parts)):
            # popped, as both copies of all columns need not fit into memory
            pieces = [part._columns.pop(name).slice(start) for part, start in zip(parts, starts, strict=True)]
            self._columns[name] = pa.concat_arrays(pieces)

    def part_ends(self) -> np.ndarray:
        """[..] the last steps of parts, ascending: where steps up to one of these are read, no part is read in half.
        That is of the first rank, as those of the others mostly end with it.
        """
        return self._pieces.ends(self.ranks[0]) if self.ranks else np.zeros(0, dtype=np.int64)

    def has(self, column: str) -> bool:
        """True if a column was measured at any step, which no more is read for than the first that tells."""
        require_column(column, worker_names())
        if column in self._columns:
            return self._columns[column].null_count < len(self._columns[column])
        return column in self._present and self._pieces.has(column)

    def pivot(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Values [T, N] float64 of a scalar column and where they were measured [T, N] bool.

        What was not measured is NaN; a measured value may be NaN too. An int64 column loses what float64 cannot hold
        (``time_ns``: below 256 ns). Raises ``RunError`` for a list column, or one of digests (see ``digests``).
        """
        values_R = self._scalars(column, digests=False)
        return self._spread(values_R.cast(pa.float64(), safe=False), np.nan, np.float64)

    def digests(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Values [T, N] uint64 of a scalar uint64 column and where they were measured [T, N] bool; 0 elsewhere."""
        return self._spread(self._scalars(column, digests=True), 0, np.uint64)

    def measured(self, column: str) -> np.ndarray:
        """[T, N] bool: where a column was measured; of a sketch no more than one part of its values is held for it."""
        require_column(column, worker_names())
        rows = self._rows.merge(self._pieces.measured(column)) if column == _LONGEST else self.column(column)
        valid_R = to_numpy(rows.is_valid())
        measured_TN = np.zeros((len(self.steps), len(self.ranks)), dtype=bool)
        measured_TN[self._step_index, self._rank_index] = valid_R & self._of_main_lists(column)
        return measured_TN

    def stack(
        self, column: str, *, steps: Sequence[int] | None = None, ranks: Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values [T, N, K] of a list column and where they were measured [T, N] bool; float64, uint64 for digests.

        What was not measured is NaN, or 0 for digests. ``steps``, which are distinct, makes T these steps only, and
        reads little else where they are few: a sketch at every step of a long Run does not fit into memory. ``ranks``,
        ascending, makes N these only. Raises ``RunError`` where lengths differ (see ``lists``), or for a column without
        lists.
        """
        lists, rows = self._measured_lists(column, steps, ranks)
        lengths = to_numpy(lists.value_lengths())
        shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
        if shortest != longest:
            raise RunError(
                f"Column '{column}' of Run '{self.path}' has lists of {shortest} to {longest} values, and "
                "a stack needs equal lengths. Use Run.lists."
            )
        dtype, absent = (np.uint64, 0) if pa.types.is_uint64(lists.type.value_type) else (np.float64, np.nan)
        at_T, at_N = (
            self.steps if steps is None else np.asarray(steps),
            np.asarray(self.ranks if ranks is None else ranks),
        )
        in_order = steps is None or bool(np.all(at_T[1:] > at_T[:-1]))
        if in_order and len(rows) == len(at_T) * len(at_N):  # each of the ranks at each of the steps, as rows are
            values_TNK = _flat(lists).astype(dtype).reshape(len(at_T), len(at_N), longest)
            return values_TNK, np.ones(values_TNK.shape[:2], dtype=bool)
        # the steps that are asked for may be in any order, and searchsorted needs an ascending one
        order_T = np.argsort(at_T)
        values_TNK = np.full((len(at_T), len(at_N), longest), absent, dtype=dtype)
        measured_TN = np.zeros(values_TNK.shape[:2], dtype=bool)
        place_T = order_T[np.searchsorted(at_T, self._rows.steps[rows], sorter=order_T)]
        at = place_T, np.searchsorted(at_N, self._rows.ranks[rows])
        values_TNK[at] = _flat(lists).reshape(len(rows), longest)
        measured_TN[at] = True
        return values_TNK, measured_TN

    def lengths(self, column: str) -> list[int]:
        """The lengths that the lists of a column have, each once, ascending."""
        require_column(column, worker_names())
        lengths = np.unique(to_numpy(self.column(column).value_lengths(), -1))  # -1: not measured
        return lengths[lengths >= 0].tolist()

    def num_rows(self, *, before: int) -> dict[int, int]:
        """Number of rows of each rank at steps before ``before``."""
        return self._rows.counts(before)

    def texts(self, column: str) -> dict[tuple[int, int], str]:
        """The values of a column of texts by (step, rank), where they were measured."""
        texts_R = self.column(column)
        if texts_R.null_count == len(texts_R):  # as of most columns of texts
            return {}
        rows = np.flatnonzero(to_numpy(texts_R.is_valid()))
        keys = zip(self._rows.steps[rows].tolist(), self._rows.ranks[rows].tolist(), strict=True)
        return dict(zip(keys, texts_R.take(from_numpy(rows)).to_pylist(), strict=True))

    def lists(
        self, column: str, *, steps: Sequence[int] | None = None, ranks: Sequence[int] | None = None
    ) -> dict[tuple[int, int], np.ndarray]:
        """The values of a list column by (step, rank), each [K] with its own K, in the column's own dtype.

        ``steps`` and ``ranks`` as in ``stack``. Raises ``RunError`` for a column without lists.
        """
        measured, rows = self._measured_lists(column, steps, ranks)
        if not len(rows):  # as of most columns in most Runs
            return {}
        values, ends = _flat(measured), np.cumsum(to_numpy(measured.value_lengths())).tolist()
        keys = zip(self._rows.steps[rows].tolist(), self._rows.ranks[rows].tolist(), strict=True)
        return {key: values[begin:end] for key, begin, end in zip(keys, [0, *ends], ends, strict=False)}

    def flat(
        self, column: str, *, steps: Sequence[int] | None = None, ranks: Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The lists of a column as four arrays, by step, then rank: step, rank and length of each list, and all values
        one after the other.
        """
        lists, rows = self._measured_lists(column, steps, ranks)
        return self._rows.steps[rows], self._rows.ranks[rows], to_numpy(lists.value_lengths()), _flat(lists)

    def kept(self, table: TableName) -> TableReader:
        """``rollouts`` or ``syncs``, whose rows are kept as they came; false where there are none."""
        if table not in self._table_readers:
            with reading(f"'{shortened(self.path)}'", UNREADABLE, error=RunError):
                self._table_readers[table] = TableReader(self._fs, self._root, table, self.problems, self._timeline)
        return self._table_readers[table]

    @cached_property
    def _table_readers(self) -> dict[TableName, TableReader]:
        return {}

    def size_bytes(self, folder: str) -> int:
        """Bytes of the files in a folder of the Run; 0 where there is none."""
        path = posixpath.join(self._root, folder)
        return sum(int(entry["size"]) for entry in self._fs.find(path, detail=True).values())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that one SELECT (DuckDB's) gives; the view ``workers`` is ``table()``, ``records`` is ``records()``,
        ``rollouts`` and ``syncs`` are ``kept``.

        It reaches nothing but these. Raises ``RunError``.
        """
        return self.query_named(sql)[1]

    def query_named(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The column names of a query and its rows; see ``query``."""
        tables = {"workers": self.table, "records": self.records}
        tables |= {name: lambda name=name: self.kept(name).table() for name in TABLE_SCHEMAS}
        return answer(sql, tables, run_path=self.path)

    def _title(self) -> str:
        span = f"steps {self.steps[0]} to {self.steps[-1]}" if len(self.steps) else "no steps"
        return f"Run '{self.path}': {span}, {len(self.ranks)} of {self.world_size} ranks"

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        step_R, rank_R = to_numpy(self.column("step")), to_numpy(self.column("rank"))
        rank_steps = [step_R[rank_R == rank].tolist() for rank in self.ranks]
        return {
            "rank": self.ranks,
            "steps": [len(steps) for steps in rank_steps],
            "first": [steps[0] if steps else None for steps in rank_steps],
            "last": [steps[-1] if steps else None for steps in rank_steps],
            "closed": [rank not in self.unclosed for rank in self.ranks],
            "findings while it ran": [
                sum(rank in finding.ranks for finding in self.live_findings) for rank in self.ranks
            ],
        }

    def _notes(self) -> Sequence[str]:
        return self.problems

    def _load(self, names: list[str]) -> None:
        pieces = self._pieces.columns(names)
        self._columns |= {name: self._rows.merge(pieces[name]) for name in names}

    def _scalars(self, column: str, *, digests: bool) -> pa.Array:
        values_R = self.column(column)
        kind = values_R.type
        if pa.types.is_list(kind) or pa.types.is_string(kind) or pa.types.is_uint64(kind) is not digests:
            expected = "digests" if digests else "numbers"
            raise RunError(
                f"Column '{column}' holds {kind}, not {expected}. Use Run.pivot for numbers, "
                "Run.digests for uint64, Run.stack or Run.lists for lists."
            )
        return values_R

    def _measured_lists(
        self, column: str, steps: Sequence[int] | None, ranks: Sequence[int] | None
    ) -> tuple[pa.Array, np.ndarray]:
        """The lists of a column that were measured at ``steps`` by ``ranks`` (None: all), and the index of each one's
        row.
        """
        require_column(column, worker_names())
        if column in scalar_names():
            raise RunError(f"Column '{column}' holds no lists. Use Run.pivot for numbers, Run.digests for uint64.")
        if column not in self._present:
            return pa.nulls(0, worker_schema().field(column).type), np.zeros(0, dtype=np.int64)
        if steps is None or column in self._columns or 2 * len(steps) > len(self.steps):
            lists_R = self.column(column)
        else:
            lists_R = self._rows.merge(self._pieces.columns([column], steps)[column])
        wanted_R = to_numpy(lists_R.is_valid()) & self._of_main_lists(column)
        if steps is not None and not np.array_equal(steps, self.steps):
            wanted_R &= np.isin(self._rows.steps, list(steps))
        if ranks is not None:
            wanted_R &= np.isin(self._rows.ranks, list(ranks))
        rows = np.flatnonzero(wanted_R)
        return lists_R if len(rows) == len(lists_R) else lists_R.take(from_numpy(rows)), rows

    def _spread(self, values_R: pa.Array, absent: float, dtype: type) -> tuple[np.ndarray, np.ndarray]:
        measured_R = to_numpy(values_R.is_valid())
        if len(values_R) == len(self.steps) * len(self.ranks):  # every rank wrote every step, and in that order
            shape = len(self.steps), len(self.ranks)
            filled_R = to_numpy(values_R, absent).astype(dtype)
            return filled_R.reshape(shape), measured_R.reshape(shape).copy()
        values_TN = np.full((len(self.steps), len(self.ranks)), absent, dtype=dtype)
        measured_TN = np.zeros(values_TN.shape, dtype=bool)
        values_TN[self._step_index, self._rank_index] = to_numpy(values_R, absent)
        measured_TN[self._step_index, self._rank_index] = measured_R
        return values_TN, measured_TN

    def _choose_lists(self) -> None:
        """Put what list columns are about into ``env``: where all ranks came to train others, what held for most steps;
        the lists of other steps count as not measured.
        """
        all_lists = max((env.lists for env in self.env.values()), key=len, default=[])
        self._lists_since = [lists.step for lists in all_lists] if len(all_lists) > 1 else [0]
        which_T = self._lists_at(self.steps)
        self._main_lists = int(np.argmax(np.bincount(which_T, minlength=1)))
        if len(all_lists) < 2:
            return
        for rank, env in self.env.items():
            if self._main_lists < len(env.lists):
                self.env[rank] = env.model_copy(update=env.lists[self._main_lists].named())
        text = (
            f"other parameters were trained from step {', '.join(map(str, self._lists_since[1:]))} on: gradients and "
            f"parameters are judged for the {int(np.sum(which_T == self._main_lists))} steps in which "
            f"{len(all_lists[self._main_lists].params)} were"
        )
        self.problems.append(Problem(text))

    def _of_main_lists(self, column: str) -> np.ndarray | bool:
        """[R] which rows of a column are about the parameters that ``env`` names."""
        return column not in param_columns() or self._lists_at(self._rows.steps) == self._main_lists

    def _lists_at(self, steps: np.ndarray) -> np.ndarray:
        """Which of the lists of ``env`` holds at each of ``steps``."""
        return np.maximum(np.searchsorted(self._lists_since, steps, side="right") - 1, 0)

    def _name_missing_ranks(self) -> None:
        elsewhere = {rank for path in self.beside for rank in _wrote_env(path)}
        for rank in range(self.world_size):
            if rank in elsewhere:
                continue
            if rank not in self.ranks:
                self.problems.append(Problem(f"rank {rank}: it wrote nothing in this Run of {self.world_size} ranks"))
            elif rank not in self.env:
                self.problems.append(Problem(f"rank {rank}: it wrote rows but no environment file"))


def _start_of(path: str) -> str:
    """Which start of a job the Run at ``path`` is of; '' where that is not known."""
    with contextlib.suppress(RunError):
        attempts = open_manifest(*filesystem_of(path), path).attempts
        return attempts[-1].id if attempts else ""
    return ""


def _wrote_env(path: str) -> set[int]:
    """The ranks that are in the Run at ``path``."""
    fs, root = filesystem_of(path)
    ranks = map(file_names.env_rank, names_in(fs, posixpath.join(root, file_names.ENV_DIR)))
    return {rank for rank in ranks if rank is not None}


def _flat(lists: pa.Array) -> np.ndarray:
    values = lists.flatten()
    return to_numpy(values, float("nan") if pa.types.is_floating(values.type) else 0)
