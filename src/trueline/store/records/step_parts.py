"""Rows of a recorded step in Arrow, and the Parquet part that many steps become.

R rows of a step, M of them measured, S statistics, E exponents; T rows of a part.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from trueline.schema.columns.records import PROJECTION_NAMES, STAT_NAMES, StepRecords
from trueline.schema.errors import InputError
from trueline.store.log.journal import FrameCodec
from trueline.store.log.parts import encode_part
from trueline.store.records.arrays import contiguous, from_numpy, from_values, lists_from, to_numpy
from trueline.store.rows import RECORD_SCHEMA

MEASURED_NAMES: tuple[str, ...] = (*STAT_NAMES, "fingerprint", "exponents")
"""Columns that StepRecords hold as arrays of the measured rows."""

STRUCTURE_NAMES: tuple[str, ...] = tuple(
    name for name in RECORD_SCHEMA.names if name not in ("step", "rank", "row", *MEASURED_NAMES)
)
"""Columns that StepRecords hold as sequences over all rows."""

TEXT_NAMES: tuple[str, ...] = tuple(field.name for field in RECORD_SCHEMA if pa.types.is_string(field.type))

_DENSE_NAMES = ("min", "max", "sum", "sum_sq", *PROJECTION_NAMES, "fingerprint", "exponents")
_LEAF = {name: f"{name}.list.element" for name in ("shape", "strides")}
_DICTIONARY_LEAVES = [_LEAF.get(name, name) for name in RECORD_SCHEMA.names if name not in _DENSE_NAMES]


def check_records(records: StepRecords) -> None:
    """Raise ``InputError`` where columns are unknown or arrays do not fit each other."""
    lengths = {name: len(column) for name, column in records.columns.items()}
    unknown = sorted(set(lengths) - set(STRUCTURE_NAMES))
    if unknown:
        raise InputError(f"'{unknown[0]}' is not a column of StepRecords. Columns: {', '.join(STRUCTURE_NAMES)}.")
    if len(set(lengths.values())) > 1:
        raise InputError(f"The columns of step {records.step} differ in length: {lengths}. Expected one value a row.")
    num_rows, num_measured = next(iter(lengths.values()), 0), len(records.measured_M)
    rows_M = records.measured_M
    if num_measured and not (rows_M[0] >= 0 and rows_M[-1] < num_rows and bool((np.diff(rows_M) > 0).all())):
        raise InputError(f"The measured rows of step {records.step} must ascend within its {num_rows} rows.")
    for name, shape in (("stats_MS", (len(STAT_NAMES),)), ("fingerprint_M", ()), ("exponents_ME", (256,))):
        values = getattr(records, name)
        if values is not None and values.shape != (num_measured, *shape):
            raise InputError(
                f"{name} of step {records.step} has shape {values.shape}, expected {(num_measured, *shape)}."
            )


def size_in_memory(records: StepRecords) -> int:
    """Bytes that a step holds until it is written, a pointer for each value that is not in an array."""
    arrays = (records.measured_M, records.stats_MS, records.fingerprint_M, records.exponents_ME)
    num_values = sum(len(column) for column in records.columns.values())
    return 8 * num_values + sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True, slots=True)
class _EncodedColumn:
    """A structure column and what it is in Arrow, as it is and (of texts) by dictionary."""

    values: Sequence[Any]
    plain: pa.Array
    coded: pa.Array


class StepEncoder:
    """Steps of one rank as frames and record batches. Columns that equal those of the step before cost nothing."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.codec = FrameCodec(RECORD_SCHEMA, table="records")
        self._last_columns: dict[str, _EncodedColumn] = {}

    def encode(self, records: StepRecords) -> tuple[pa.RecordBatch, bytes]:
        """The rows, texts dictionary-encoded, for ``encode_records``, and the frame that holds them.

        Raises ``InputError`` for a value that does not fit.
        """
        num_rows = len(next(iter(records.columns.values()), ()))
        keys = {
            "step": from_numpy(np.full(num_rows, records.step, dtype=np.int64)),
            "rank": from_numpy(np.full(num_rows, self._rank, dtype=np.int32)),
            "row": from_numpy(np.arange(num_rows, dtype=np.int32)),
        }
        columns = {name: self._structure(name, values) for name, values in records.columns.items()}
        measured = _measured(records, num_rows)
        plain = keys | {name: column.plain for name, column in columns.items()} | measured
        coded = keys | {name: column.coded for name, column in columns.items()} | measured
        return _batch(coded), self.codec.encode_batch(_batch(plain))

    def _structure(self, name: str, values: Sequence[Any]) -> _EncodedColumn:
        column = self._last_columns.get(name)
        if column is not None and _equal(column.values, values):
            return column
        try:
            plain = from_values(values, RECORD_SCHEMA.field(name).type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InputError(
                f"Column '{name}' of a records row takes {RECORD_SCHEMA.field(name).type}, got "
                f"{reprlib.repr(values)}: {error}."
            ) from None
        self._last_columns[name] = _EncodedColumn(
            values, plain, plain.dictionary_encode() if name in TEXT_NAMES else plain
        )
        return self._last_columns[name]


def encode_records(batches: list[pa.RecordBatch]) -> bytes:
    """The Parquet part of steps as ``StepEncoder`` encodes them, or as a journal holds them, of which each may lack
    other columns.

    Rows are sorted by (name, row, step): the rows of one site follow each other, so that all that says where and what
    it is, is stored about once for all steps.
    """
    steps = [pa.Table.from_batches([batch]) for batch in latest(batches)]
    table = pa.concat_tables(steps, promote_options="default")
    table = table.unify_dictionaries().combine_chunks()
    names_T = contiguous(table["name"]) if "name" in table.column_names else None
    keys = [to_numpy(table["step"]), to_numpy(table["row"])]
    if names_T is not None:
        keys.append(_ranks(names_T if pa.types.is_dictionary(names_T.type) else names_T.dictionary_encode()))
    # the last key is the first to sort by
    order = np.lexsort(keys)
    return encode_part(table.take(from_numpy(order)), dictionary=_DICTIONARY_LEAVES)


def latest(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Of batches of one step each, oldest first, the last of every step."""
    # a step that was recorded again after a restart replaces the first
    return list({batch["step"][0].as_py(): batch for batch in batches}.values())


def _batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    names = [name for name in RECORD_SCHEMA.names if name in columns]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)


def _equal(before: Sequence[Any], now: Sequence[Any]) -> bool:
    # the recorder hands over the very lists of the step before where nothing changed
    if before is now:
        return True
    if isinstance(before, np.ndarray) or isinstance(now, np.ndarray):
        return np.array_equal(before, now)
    # an equal list of another type may be another type in Arrow
    return type(before) is type(now) and bool(before == now)


def _measured(records: StepRecords, num_rows: int) -> dict[str, pa.Array]:
    """The measured columns, null in the rows that were not."""
    unmeasured_R = np.ones(num_rows, dtype=bool)
    unmeasured_R[records.measured_M] = False
    columns: dict[str, pa.Array] = {}
    if records.stats_MS is not None:
        values_SR = np.zeros((len(STAT_NAMES), num_rows))
        values_SR[:, records.measured_M] = records.stats_MS.T
        missing_SR = np.isnan(values_SR)
        for name, values_R, missing_R in zip(STAT_NAMES, values_SR, missing_SR, strict=True):
            kind = RECORD_SCHEMA.field(name).type
            if pa.types.is_integer(kind):
                # counts are whole numbers: NaN stands for one that was not taken
                absent_R = unmeasured_R | ~np.isfinite(values_R)
                columns[name] = from_numpy(np.where(absent_R, 0, values_R).astype(np.int64), absent_N=absent_R)
            else:
                absent_R = unmeasured_R | (missing_R if name in PROJECTION_NAMES else missing_R & missing_SR[0])
                columns[name] = from_numpy(values_R.astype(kind.to_pandas_dtype()), absent_N=absent_R)
    if records.fingerprint_M is not None:
        fingerprint_R = np.zeros(num_rows, dtype=np.uint64)
        fingerprint_R[records.measured_M] = records.fingerprint_M
        columns["fingerprint"] = from_numpy(fingerprint_R, absent_N=unmeasured_R)
    if records.exponents_ME is not None:
        width = records.exponents_ME.shape[1]
        ends_R = np.cumsum(np.where(unmeasured_R, 0, width))
        ends_R = np.concatenate([[0], ends_R]).astype(np.int32)
        values = from_numpy(np.ascontiguousarray(records.exponents_ME, dtype=np.int64).reshape(-1))
        columns["exponents"] = lists_from(values, ends_R, absent_N=unmeasured_R)
    return columns


def _ranks(texts: pa.DictionaryArray) -> np.ndarray:
    """[T] where each text stands in the sorted order of all distinct ones."""
    num_texts = len(texts.dictionary)
    rank_of_code = np.empty(num_texts + 1, dtype=np.int64)
    rank_of_code[np.argsort(np.asarray(texts.dictionary.to_pylist(), dtype=object), kind="stable")] = np.arange(
        num_texts
    )
    rank_of_code[num_texts] = num_texts
    return rank_of_code[np.where(to_numpy(texts.is_valid()), to_numpy(texts.indices), num_texts)]
