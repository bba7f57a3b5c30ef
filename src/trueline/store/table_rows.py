"""Rows that are kept as they came, of the tables in ``schema/columns/rollouts.py``, in Arrow and as Parquet parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from trueline.schema.columns.rollouts import Lists, TableName, TableRows
from trueline.schema.errors import InputError
from trueline.store.log.journal import FrameCodec
from trueline.store.log.parts import encode_part
from trueline.store.migrate import to_current
from trueline.store.records.arrays import empty_table, from_numpy, from_values, lists_from
from trueline.store.rows import TABLE_SCHEMAS


class TableEncoder:
    """Frames of the rows of one table on one rank, which are numbered within each step."""

    def __init__(self, table: TableName, rank: int) -> None:
        self.codec = FrameCodec(TABLE_SCHEMAS[table], table=table)
        self._schema = TABLE_SCHEMAS[table]
        self._rank = rank
        self._step, self._next = -1, 0

    def encode(self, rows: TableRows) -> tuple[pa.RecordBatch, bytes]:
        """The rows as a record batch, and the frame that holds it. Raises ``InputError`` for what does not fit."""
        if rows.step != self._step:
            self._step, self._next = rows.step, 0
        first, self._next = self._next, self._next + rows.num_rows
        count = rows.num_rows
        arrays = {
            "step": from_numpy(np.full(count, rows.step, np.int64)),
            "rank": from_numpy(np.full(count, self._rank, np.int32)),
            "row": from_numpy(np.arange(first, first + count, dtype=np.int32)),
        }
        for name, values in rows.columns.items():
            arrays[name] = self._column(rows.table, name, values)
        present = [field for field in self._schema if field.name in arrays]
        batch = pa.RecordBatch.from_arrays([arrays[field.name] for field in present], schema=pa.schema(present))
        return batch, self.codec.encode_batch(batch)

    def _column(self, table: str, name: str, values: Lists | Sequence[object]) -> pa.Array:
        index = self._schema.get_field_index(name)
        if index < 0:
            raise InputError(f"'{name}' is not a column of {table}. Columns: {', '.join(self._schema.names)}.")
        kind = self._schema.field(index).type
        try:
            if isinstance(values, Lists):
                elements = from_values(values.values, kind.value_type)
                return lists_from(elements, values.ends_R1, absent_N=values.absent_R)
            return from_values(values, kind)
        except (AttributeError, pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InputError(f"Column '{name}' of {table} takes {kind}: {error}.") from None


def encode_table(table: TableName, batches: list[pa.RecordBatch]) -> bytes:
    """The part that rows of a table become; they may have other columns each."""
    return encode_part(whole_table(table, batches))


def whole_table(table: TableName, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Record batches as one table under all columns of today."""
    schema = TABLE_SCHEMAS[table]
    pieces = [to_current(pa.Table.from_batches([batch]), schema, schema.names) for batch in batches]
    return pa.concat_tables([empty_table(schema), *pieces]).combine_chunks()
