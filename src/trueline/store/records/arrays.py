"""Arrow arrays from Python values and NumPy arrays, and back, made of their buffers.

pyarrow's own ways import pandas wherever that is installed, to see whether a Series is concerned: memory that a
training process would keep for nothing (benchmarks/recording), and half a second before anything is judged.
"""

from __future__ import annotations

import array
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Column = Any
"""A ``pyarrow.Array`` or ``ChunkedArray``; pyarrow declares no types."""

LETTERS = {
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}
"""Type codes of the module ``array``, which refuses numbers that do not fit."""


def from_numpy(values_N: NDArray[Any], *, absent_N: NDArray[np.bool_] | None = None) -> pa.Array:
    """[N] the numbers as they are in memory, which nobody may change any more, or bools; null where ``absent_N``."""
    bits = np.packbits(values_N, bitorder="little") if values_N.dtype == np.bool_ else np.ascontiguousarray(values_N)
    buffers = [_valid(absent_N), pa.py_buffer(bits)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values_N.dtype), len(values_N), buffers)


def from_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values, None for null, as an array of numbers, of texts, or of lists of these.

    Raises ``TypeError``, ``ValueError`` or ``OverflowError`` for a value that is of another kind, or does not fit.
    """
    if pa.types.is_list(kind):
        return _lists(values, kind)
    if pa.types.is_string(kind):
        return _texts(values, kind)
    if isinstance(values, np.ndarray) or None not in values:
        return _numbers(values, kind, None)
    return _numbers([0 if value is None else value for value in values], kind, _absent(values))


def take_rows(values: pa.Array, at_N: NDArray[np.int64]) -> pa.Array:
    """[N] the values at ``at_N``. Lists of as many numbers each, none null, which is what most rows have, are moved as
    rows of a matrix: three times as fast as each by its ends.
    """
    rows = _matrix(values)
    if rows is None:
        return values.take(from_numpy(at_N))
    ends = np.arange(len(at_N) + 1, dtype=np.int32) * np.int32(rows.shape[1])
    buffers = [None, pa.py_buffer(ends)]
    return pa.Array.from_buffers(values.type, len(at_N), buffers, children=[from_numpy(rows[at_N].reshape(-1))])


def _matrix(values: pa.Array) -> NDArray[Any] | None:
    """[N, K] the numbers of N lists of K each; None where they are no such lists."""
    if not pa.types.is_list(values.type) or values.null_count or not len(values):
        return None
    elements, lengths_N = values.flatten(), to_numpy(values.value_lengths())
    if elements.null_count or elements.type not in LETTERS or np.any(lengths_N != lengths_N[0]):
        return None
    return to_numpy(elements).reshape(len(values), -1) if lengths_N[0] else None


def lists_from(elements: pa.Array, ends_N: NDArray[np.int32], *, absent_N: NDArray[np.bool_]) -> pa.Array:
    """[N - 1] lists of the elements between each of ``ends_N`` and the next; null where ``absent_N``."""
    buffers = [_valid(absent_N), pa.py_buffer(ends_N)]
    return pa.Array.from_buffers(pa.list_(elements.type), len(ends_N) - 1, buffers, children=[elements])


def to_numpy(values: Column, absent: Any = None) -> NDArray[Any]:
    """[N] numbers or bools, which are not to be written to; ``absent`` stands for null (None: none is null)."""
    whole = contiguous(values) if isinstance(values, pa.ChunkedArray) else values
    first, last = whole.offset, whole.offset + len(whole)
    if pa.types.is_boolean(whole.type):
        bits = np.frombuffer(whole.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, count=last, bitorder="little")[first:].astype(np.bool_)
    if not len(whole):
        return np.empty(0, LETTERS[whole.type])
    numbers_N = np.frombuffer(whole.buffers()[1], LETTERS[whole.type], count=last)[first:]
    if absent is None or not whole.null_count:
        return numbers_N
    return np.where(to_numpy(whole.is_valid()), numbers_N, np.array(absent, numbers_N.dtype))


def floats(values: Column) -> NDArray[np.float64]:
    """[N] any numbers as float64; NaN for null."""
    return to_numpy(values.cast(pa.float64(), safe=False), float("nan"))


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else empty(column.type)


def empty(kind: pa.DataType) -> pa.Array:
    """An array of nothing."""
    return pa.nulls(0, kind)


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table without rows."""
    return pa.Table.from_arrays([empty(field.type) for field in schema], schema=schema)


def _numbers(values: Sequence[Any], kind: pa.DataType, absent_N: NDArray[np.bool_] | None) -> pa.Array:
    letter = LETTERS[kind]
    if isinstance(values, np.ndarray):
        casting = "same_kind" if pa.types.is_floating(kind) else "safe"
        if values.ndim == 1 and np.can_cast(values.dtype, np.dtype(letter), casting):
            return from_numpy(values.astype(letter))
        values = values.tolist()
    try:
        numbers = array.array(letter, values)
    except TypeError:
        numbers = array.array(letter, [_whole(value) for value in values])
    return pa.Array.from_buffers(kind, len(values), [_valid(absent_N), pa.py_buffer(numbers)])


def _whole(value: Any) -> Any:
    """A float without a fraction as an int; anything else as it is."""
    return int(value) if isinstance(value, (float, np.floating)) and float(value).is_integer() else value


def _texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    absent_N = _absent(values)
    encoded = list(map(str.encode, (value for value in values if value is not None)))
    lengths_N = np.zeros(len(values), np.int32)
    lengths_N[~absent_N] = np.fromiter(map(len, encoded), np.int32, len(encoded))
    buffers = [_valid(absent_N), _ends(lengths_N), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _lists(values: Sequence[Any], kind: pa.ListType) -> pa.Array:
    if len(values) == 1 and values[0] is not None:  # as in each row of the workers table
        buffers = [None, pa.py_buffer(array.array("i", (0, len(values[0]))))]
        return pa.Array.from_buffers(kind, 1, buffers, children=[from_values(values[0], kind.value_type)])
    absent_N = _absent(values)
    lists = [() if value is None else value for value in values] if absent_N.any() else values
    elements = list(itertools.chain.from_iterable(lists))
    buffers = [_valid(absent_N), _ends(np.fromiter(map(len, lists), np.int32, len(lists)))]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[from_values(elements, kind.value_type)])


def _absent(values: Sequence[Any]) -> NDArray[np.bool_]:
    """[N] whether each is None."""
    return np.fromiter(map(operator.is_, values, itertools.repeat(None)), np.bool_, len(values))


def _ends(lengths_N: NDArray[np.int32]) -> pa.Buffer:
    """Where each of the texts or lists ends, after the 0 at which the first begins."""
    ends = np.zeros(len(lengths_N) + 1, np.int32)
    np.cumsum(lengths_N, out=ends[1:])
    return pa.py_buffer(ends)


def _valid(absent_N: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if absent_N is None else pa.py_buffer(np.packbits(~absent_N, bitorder="little"))
