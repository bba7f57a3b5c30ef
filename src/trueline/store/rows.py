"""Rows of the tables in Arrow, and how ``workers`` rows that were written in several pieces become one.

T pieces, R merged rows, one for each (step, rank).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from trueline.schema.columns.records import RECORD_COLUMNS
from trueline.schema.columns.rollouts import TABLE_COLUMNS, TableName
from trueline.schema.columns.table import worker_columns
from trueline.schema.errors import RunError
from trueline.store.log.short_rows import Row
from trueline.store.records.arrays import contiguous, empty, from_numpy, from_values, take_rows, to_numpy

_ARROW_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "float32": pa.float32(),
    "string": pa.string(),
    "list<int32>": pa.list_(pa.int32()),
    "list<int64>": pa.list_(pa.int64()),
    "list<uint64>": pa.list_(pa.uint64()),
    "list<float64>": pa.list_(pa.float64()),
    "list<float32>": pa.list_(pa.float32()),
}


@cache
def worker_schema() -> pa.Schema:
    """Of the table ``workers``, with the columns of the laws that are installed."""
    return pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in worker_columns()])


@cache
def worker_names() -> tuple[str, ...]:
    """The columns of the table ``workers``: a schema makes their names anew whenever it is asked."""
    return tuple(worker_schema().names)


RECORD_SCHEMA: pa.Schema = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in RECORD_COLUMNS])

TABLE_SCHEMAS: dict[TableName, pa.Schema] = {
    name: pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in columns])
    for name, columns in TABLE_COLUMNS.items()
}
"""Of the tables whose rows are kept as they came."""


@cache
def scalar_names() -> tuple[str, ...]:
    """Columns of one number a row; texts, which may be long, are read when they are asked for, as lists are."""
    return tuple(
        field.name for field in worker_schema() if not (pa.types.is_list(field.type) or pa.types.is_string(field.type))
    )


def require_column(column: str, columns: Sequence[str]) -> None:
    """Raise ``RunError`` where ``column`` is none of a table's ``columns``."""
    if column not in columns:
        near = difflib.get_close_matches(column, columns, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise RunError(f"'{column}' is not a column of a Run. {hint}Columns: {', '.join(columns)}.")


KEYS = ("step", "rank")
"""The columns that say which row it is."""


@dataclass(frozen=True, slots=True)
class StepsInARow:
    """The keys of ``num`` rows of one rank whose steps follow one another, as those of nearly all parts do: a hundred
    million of them need not be held to be known.
    """

    rank: int
    first: int
    num: int

    @classmethod
    def from_rows(cls, rows: pa.Table) -> StepsInARow | None:
        """Of rows with ``step`` and ``rank``, if they are such."""
        step_T, rank_T = to_numpy(rows["step"]), to_numpy(rows["rank"], -1)
        # the ends tell most others at no cost, before all steps are compared
        if not len(step_T) or rank_T[0] < 0 or step_T[-1] - step_T[0] != len(step_T) - 1:
            return None
        span = cls(int(rank_T[0]), int(step_T[0]), len(step_T))
        return span if np.array_equal(step_T, span.steps()) and np.all(rank_T == span.rank) else None

    def __len__(self) -> int:
        return self.num

    def steps(self) -> np.ndarray:
        """[num] int64."""
        return np.arange(self.first, self.first + self.num)

    def table(self) -> pa.Table:
        """The columns ``step`` and ``rank``."""
        ranks = np.full(self.num, self.rank, np.int32)
        return pa.table({"step": from_numpy(self.steps()), "rank": from_numpy(ranks)})


class MergeOrder:
    """How pieces amount to rows: sorted by (step, rank), later non-null values win.

    ``written_T`` says in which order the pieces were written; by default the oldest comes first. NaN is a value and
    wins over an earlier number; null is the absence of one and never does.
    """

    def __init__(self, step_T: np.ndarray, rank_T: np.ndarray, written_T: np.ndarray | None = None) -> None:
        self._order = np.lexsort((rank_T, step_T) if written_T is None else (written_T, rank_T, step_T))
        step_T, rank_T = step_T[self._order], rank_T[self._order]
        starts = np.ones(len(step_T), dtype=bool)
        starts[1:] = (step_T[1:] != step_T[:-1]) | (rank_T[1:] != rank_T[:-1])
        self._first = np.flatnonzero(starts)
        self._whole = len(self._first) == len(step_T)
        """Whether no row came in more than one piece."""
        self.steps: np.ndarray = step_T[self._first]
        """[R] int64, ascending."""
        self.ranks: np.ndarray = rank_T[self._first]
        """[R] int32, ascending within a step."""

    def __len__(self) -> int:
        return len(self.steps)

    def from_step(self, step: int) -> int:
        """The first row of ``step`` or a later one."""
        return int(np.searchsorted(self.steps, step))

    def distinct_steps(self) -> np.ndarray:
        """[T] int64, ascending."""
        return np.unique(self.steps)

    def last_of(self) -> dict[int, int]:
        """The last step of each rank that has a row, by rank, ascending."""
        # np.unique gives the first of each, which is the last of the reversed order
        ranks, at = np.unique(self.ranks[::-1], return_index=True)
        return dict(zip(ranks.tolist(), self.steps[::-1][at].tolist(), strict=True))

    def counts(self, before: int) -> dict[int, int]:
        """How many rows each rank has of steps before ``before``."""
        ranks, counts = np.unique(self.ranks[: self.from_step(before)], return_counts=True)
        return dict(zip(ranks.tolist(), counts.tolist(), strict=True))

    def merge(self, pieces: pa.ChunkedArray) -> pa.Array:
        """[R] merged values of a column of [T] pieces."""
        if not len(pieces):
            return empty(pieces.type)
        # nothing to merge: as it is in nearly every Run
        if self._whole:
            return take_rows(contiguous(pieces), self._order)
        valid_T = to_numpy(pieces.is_valid())[self._order]
        # the last piece with a value is the greatest position; -1 where no piece has one
        position_T = np.where(valid_T, np.arange(len(valid_T)), -1)
        last_R = np.maximum.reduceat(position_T, self._first)
        chosen_R = from_numpy(self._order[np.maximum(last_R, 0)], absent_N=last_R < 0)
        return contiguous(pieces).take(chosen_R)


class GridOrder(MergeOrder):
    """The order where each of ``ranks`` [N], ascending, has each of ``num`` steps in a row once, and pieces come one
    rank after the other. Rows are numbered when somebody asks.
    """

    def __init__(self, ranks_N: np.ndarray, first: int, num: int) -> None:
        self._ranks_N, self._first_step, self._num = ranks_N, first, num
        self._whole = True

    def __len__(self) -> int:
        return self._num * len(self._ranks_N)

    def from_step(self, step: int) -> int:
        return min(max(step - self._first_step, 0), self._num) * len(self._ranks_N)

    def distinct_steps(self) -> np.ndarray:
        return np.arange(self._first_step, self._first_step + self._num)

    def last_of(self) -> dict[int, int]:
        return dict.fromkeys(self._ranks_N.tolist(), self._first_step + self._num - 1)

    def counts(self, before: int) -> dict[int, int]:
        num = min(max(before - self._first_step, 0), self._num)
        return dict.fromkeys(self._ranks_N.tolist(), num) if num else {}

    @cached_property
    def _order(self) -> np.ndarray:
        return np.arange(len(self)).reshape(len(self._ranks_N), self._num).T.ravel()

    @cached_property
    def steps(self) -> np.ndarray:
        return np.repeat(self.distinct_steps(), len(self._ranks_N))

    @cached_property
    def ranks(self) -> np.ndarray:
        return np.tile(self._ranks_N, self._num)


def merge_batches(batches: Sequence[Row]) -> pa.Table:
    """The merged rows of record batches and of rows as they are (under ``worker_schema()``, without null), oldest
    first, of which each may have other columns; at least one.

    As ``MergeOrder``, without ``pyarrow.compute``: every rank that is watched would hold 9 MiB more for it.
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    types: dict[str, pa.DataType] = {}
    for batch in batches:
        if isinstance(batch, Mapping):
            if not batch.keys() <= types.keys():
                types = {name: worker_schema().field(name).type for name in batch} | types
            rows.setdefault((batch["step"], batch["rank"]), {}).update(batch)
            continue
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if not columns.keys() <= types.keys():
            types = {name: column.type for name, column in columns.items()} | types
        for index, key in enumerate(zip(columns["step"].to_pylist(), columns["rank"].to_pylist(), strict=True)):
            row = rows.setdefault(key, {})
            for name, column in columns.items():
                value = column if len(column) == 1 else column.slice(index, 1)
                if not value.null_count:
                    row[name] = value
    in_order = [rows[key] for key in sorted(rows)]
    return pa.table({name: _column([row.get(name) for row in in_order], kind) for name, kind in types.items()})


def _column(values_R: list[Any], kind: pa.DataType) -> pa.Array:
    """[R] a column of values that are arrays of one each, or plain; None for null."""
    if all(value is None or isinstance(value, pa.Array) for value in values_R):
        absent = pa.nulls(1, kind)
        return pa.concat_arrays([absent if value is None else value for value in values_R])
    return from_values([value[0].as_py() if isinstance(value, pa.Array) else value for value in values_R], kind)
