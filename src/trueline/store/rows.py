"""Rows of the ``workers`` table in Arrow, and how rows that were written in several pieces become one.

T pieces, R merged rows, one for each (step, rank).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trueline.schema.workers import WORKER_COLUMNS

_ARROW_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "list<uint64>": pa.list_(pa.uint64()),
    "list<float64>": pa.list_(pa.float64()),
    "list<float32>": pa.list_(pa.float32()),
}

WORKER_SCHEMA: pa.Schema = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in WORKER_COLUMNS])


class MergedRows:
    """The rows that a table of pieces amounts to: sorted by (step, rank), later non-null values win.

    ``written_T`` says in which order the pieces were written; by default the table has the oldest first. NaN is a
    value and wins over an earlier number; null is the absence of one and never does.
    Columns are merged when they are asked for: most questions need a few of them.
    """

    def __init__(self, pieces: pa.Table, written_T: np.ndarray | None = None) -> None:
        self._pieces = pieces
        step_T = pieces["step"].to_numpy()
        rank_T = pieces["rank"].to_numpy()
        written_T = np.arange(len(step_T)) if written_T is None else written_T
        self._order = np.lexsort((written_T, rank_T, step_T))
        step_T, rank_T = step_T[self._order], rank_T[self._order]
        starts = np.ones(len(step_T), dtype=bool)
        starts[1:] = (step_T[1:] != step_T[:-1]) | (rank_T[1:] != rank_T[:-1])
        self._first = np.flatnonzero(starts)
        self.steps: np.ndarray = step_T[self._first]
        """[R] int64, ascending."""
        self.ranks: np.ndarray = rank_T[self._first]
        """[R] int32, ascending within a step."""

    def column(self, name: str) -> pa.Array:
        """[R] merged values of a column."""
        pieces = _contiguous(self._pieces[name])
        if not len(pieces):
            return pieces
        valid_T = pieces.is_valid().to_numpy(zero_copy_only=False)[self._order]
        position_T = np.where(valid_T, np.arange(len(valid_T)), -1)
        last_R = np.maximum.reduceat(position_T, self._first)
        return pieces.take(pa.array(self._order[np.maximum(last_R, 0)], mask=last_R < 0))

    def table(self) -> pa.Table:
        """All columns, merged."""
        return pa.table([self.column(name) for name in self._pieces.column_names], schema=self._pieces.schema)


def merge_batches(batches: list[pa.RecordBatch]) -> pa.Table:
    """The merged rows of record batches, oldest first, of which each may have other columns; at least one batch."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, batch in enumerate(batches):
        alike.setdefault(tuple(batch.schema.names), []).append(index)
    tables = [pa.Table.from_batches([batches[index] for index in indices]) for indices in alike.values()]
    lengths = [batches[index].num_rows for indices in alike.values() for index in indices]
    written_T = np.repeat([index for indices in alike.values() for index in indices], lengths)
    pieces = pa.concat_tables([table.combine_chunks() for table in tables], promote_options="default")
    return MergedRows(pieces, written_T).table()


def concatenate(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables one after the other with the columns of ``schema``; a column that a table lacks is null there."""
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default").select(schema.names)


def _contiguous(chunked: pa.ChunkedArray) -> pa.Array:
    combined = chunked.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)
