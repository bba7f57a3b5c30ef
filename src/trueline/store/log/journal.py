"""The journal of one rank: the steps that are not yet sealed, one frame a write.

File: ``TLJ1``, part sequence, length of the schema, CRC32 of both, the Arrow schema; then frames.
Frame: magic, length of the body, CRC32 of the body; body: length before compression, a bit for each column present,
and a zstd-compressed Arrow record batch of these columns, without schema. All integers are little-endian uint32.

A frame's CRC32 starts from that of the schema: a frame can only be taken for what it is under the schema that wrote it,
also where the file's header is damaged and the reader has to try its own.
"""

from __future__ import annotations

import contextlib
import reprlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trueline.schema.errors import InputError
from trueline.schema.text.reading import why
from trueline.store.file_names import INTERRUPTED, PARTS_PER_ATTEMPT, PartName, Problem
from trueline.store.log.durable import append, open_replacement
from trueline.store.log.short_rows import Row, ShortRows
from trueline.store.records.arrays import from_values

_FILE_MAGIC = b"TLJ1"
_FILE_HEADER = struct.Struct("<4sIII")
_FRAME_MAGIC = b"\xf1TL\x9e"
_FRAME_HEADER = struct.Struct("<4sII")
_RAW_LENGTH = struct.Struct("<I")
_ZSTD = pa.Codec("zstd", compression_level=1)
_MOST_TIMES = 2**15
"""What a byte of zstd can become at most: a block of one repeated byte takes 4 bytes, and gives 128 KiB (RFC 8878)."""


class FrameCodec:
    """Frames from records and back, under one schema."""

    def __init__(self, schema: pa.Schema, *, table: str = "workers") -> None:
        self._schema = schema
        self._table = table
        self.schema_bytes: bytes = schema.serialize().to_pybytes()
        self.seed: int = zlib.crc32(self.schema_bytes)
        self._mask_bytes = (len(schema) + 7) // 8
        self._layouts: dict[tuple[str, ...], tuple[pa.Schema, bytes]] = {}
        self._short_rows: dict[tuple[str, ...], ShortRows] = {}

    def encode(self, record: Mapping[str, Any]) -> tuple[Row, bytes]:
        """One row, as it is or as a record batch of the columns it has, and the frame that holds it.

        Raises ``InputError`` for a column that does not exist, or a value that does not fit its type.
        """
        columns = tuple(record)
        short = self._short_rows.get(columns)
        if short is not None and (message := short.message(record)) is not None:
            return record, self._framed(message, len(message), short.mask)
        batch, frame = self._encode_by_arrow(record)
        if short is None:
            schema, mask = self._layout(columns)
            self._short_rows[columns] = ShortRows(schema, mask)
        return batch, frame

    def _encode_by_arrow(self, record: Mapping[str, Any]) -> tuple[pa.RecordBatch, bytes]:
        schema, mask = self._layout(tuple(record))
        try:
            batch = pa.RecordBatch.from_arrays(
                [from_values([record[column.name]], column.type) for column in schema], schema=schema
            )
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InputError(self._misfit(record, error)) from None
        return batch, self._frame(batch, mask)

    def encode_batch(self, batch: pa.RecordBatch) -> bytes:
        """The frame that holds rows under some columns of the schema, in its order."""
        return self._frame(batch, self._layout(tuple(batch.schema.names))[1])

    def decode(self, body: bytes) -> pa.RecordBatch:
        """The record batch in the body of a frame. Raises ``ValueError``, and what Arrow raises."""
        (raw_length,) = _RAW_LENGTH.unpack_from(body)
        if raw_length > _MOST_TIMES * len(body):
            raise ValueError(f"its {len(body):,} bytes declare {raw_length:,}")
        mask = int.from_bytes(body[_RAW_LENGTH.size : _RAW_LENGTH.size + self._mask_bytes], "little")
        schema = pa.schema([column for index, column in enumerate(self._schema) if mask >> index & 1])
        message = _ZSTD.decompress(body[_RAW_LENGTH.size + self._mask_bytes :], raw_length)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)  # Arrow follows offsets without looking, and the process would be gone
        if "step" not in schema.names or batch["step"].null_count or batch["step"].type != pa.int64():
            raise ValueError("it has rows of which the step is not known")
        return batch

    def _frame(self, batch: pa.RecordBatch, mask: bytes) -> bytes:
        message = batch.serialize()
        return self._framed(message, message.size, mask)

    def _framed(self, message: bytes | pa.Buffer, size_bytes: int, mask: bytes) -> bytes:
        body = _RAW_LENGTH.pack(size_bytes) + mask + _ZSTD.compress(message, asbytes=True)
        return _FRAME_HEADER.pack(_FRAME_MAGIC, len(body), zlib.crc32(body, self.seed)) + body

    def _layout(self, columns: tuple[str, ...]) -> tuple[pa.Schema, bytes]:
        layout = self._layouts.get(columns)
        if layout is None:
            indices = sorted(self._index(column) for column in columns)
            mask = sum(1 << index for index in indices).to_bytes(self._mask_bytes, "little")
            layout = self._layouts[columns] = (pa.schema([self._schema.field(index) for index in indices]), mask)
        return layout

    def _index(self, column: str) -> int:
        index = self._schema.get_field_index(column)
        if index < 0:
            raise InputError(
                f"'{column}' is not a column of a {self._table} row. Columns: {', '.join(self._schema.names)}."
            )
        return index

    def _misfit(self, record: Mapping[str, Any], error: Exception) -> str:
        for name, value in record.items():
            column = self._schema.field(name)
            try:
                from_values([value], column.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as reason:
                return (
                    f"Column '{name}' of a {self._table} row takes {column.type}, got {reprlib.repr(value)}: {reason}."
                )
        return f"A {self._table} row cannot be stored: {error}."


def raw_bytes(frame: bytes) -> int:
    """Bytes of the rows in a frame before compression."""
    return int(_RAW_LENGTH.unpack_from(frame, _FRAME_HEADER.size)[0])


class JournalWriter:
    """Appends frames to a journal that replaces, whole, whatever was at ``path``. Every failure is an ``OSError``."""

    def __init__(self, path: str, *, sequence: int, codec: FrameCodec) -> None:
        header = _file_header(codec.schema_bytes, sequence)
        self._file = open_replacement(path, header)
        self._size_bytes = len(header)

    def append(self, frame: bytes) -> None:
        """Add a frame: once this returns, a SIGKILL does not lose it; where it raises, the frame is not there."""
        self._size_bytes = append(self._file.number, frame, self._size_bytes)

    def close(self) -> None:
        """Close the file handle; the file stays."""
        self._file.close()


@dataclass(slots=True)
class JournalContent:
    """What a journal holds: its rows, oldest first, and what had to be skipped.

    ``sequence`` is the number of the part that the journal will become, None where the header is unreadable.
    """

    sequence: int | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list[Problem])

    def attempt(self, parts: Iterable[PartName]) -> int:
        """The start of the job that wrote it; where the header is unreadable, that of the last of the rank's parts."""
        if self.sequence is not None:
            return self.sequence // PARTS_PER_ATTEMPT
        return max((part.attempt for part in parts), default=0)


def read_journal(data: bytes, schema: pa.Schema) -> JournalContent:
    """Everything readable in the bytes of a journal, whose header, where it is intact, overrules ``schema``.

    Never raises: what cannot be read is in ``problems``.
    """
    content = JournalContent()
    codec, start = _open(data, schema, content)
    for offset, end, body in _frames(data, start, codec.seed):
        if body is None:
            content.problems.append(_describe_gap(data, offset, end))
            continue
        try:
            content.batches.append(codec.decode(body))
        except Exception as error:  # Arrow has errors of its own, and raises Python's as well
            text = f"the frame at byte {offset} cannot be decoded ({why(error)}) and was skipped"
            content.problems.append(Problem(text))
    return content


def _file_header(schema_bytes: bytes, sequence: int) -> bytes:
    crc = zlib.crc32(schema_bytes, sequence)
    return _FILE_HEADER.pack(_FILE_MAGIC, sequence, len(schema_bytes), crc) + schema_bytes


def _open(data: bytes, schema: pa.Schema, content: JournalContent) -> tuple[FrameCodec, int]:
    if len(data) >= _FILE_HEADER.size:
        magic, sequence, length, crc = _FILE_HEADER.unpack_from(data)
        schema_bytes = data[_FILE_HEADER.size : _FILE_HEADER.size + length]
        if magic == _FILE_MAGIC and len(schema_bytes) == length and zlib.crc32(schema_bytes, sequence) == crc:
            with contextlib.suppress(pa.ArrowException, OSError, ValueError):
                file_schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
                _require_types(file_schema, schema)
                content.sequence = sequence
                return FrameCodec(file_schema), _FILE_HEADER.size + length
    content.problems.append(Problem("its header is damaged; the columns of this version were assumed"))
    first = data.find(_FRAME_MAGIC)
    return FrameCodec(schema), first if first >= 0 else len(data)


def _require_types(file_schema: pa.Schema, schema: pa.Schema) -> None:
    """Raise ``ValueError`` where a column of both is of two types."""
    for column in file_schema:
        if column.name in schema.names and not column.type.equals(schema.field(column.name).type):
            raise ValueError(column.name)


def _frames(data: bytes, start: int, seed: int) -> Iterator[tuple[int, int, bytes | None]]:
    """(first byte, byte after the last, body) of each frame; body None for a stretch that holds no intact frame."""
    position = start
    while position < len(data):
        body = _body_at(data, position, seed)
        if body is None:
            resumed = _next_frame(data, position + 1, seed)
            yield position, resumed, None
            position = resumed
        else:
            end = position + _FRAME_HEADER.size + len(body)
            yield position, end, body
            position = end


def _next_frame(data: bytes, position: int, seed: int) -> int:
    candidate = data.find(_FRAME_MAGIC, position)
    while candidate >= 0:
        if _body_at(data, candidate, seed) is not None:
            return candidate
        candidate = data.find(_FRAME_MAGIC, candidate + 1)
    return len(data)


def _body_at(data: bytes, position: int, seed: int) -> bytes | None:
    if len(data) - position < _FRAME_HEADER.size:
        return None
    magic, length, crc = _FRAME_HEADER.unpack_from(data, position)
    body = data[position + _FRAME_HEADER.size : position + _FRAME_HEADER.size + length]
    if magic != _FRAME_MAGIC or len(body) != length or zlib.crc32(body, seed) != crc:
        return None
    return body


def _describe_gap(data: bytes, offset: int, end: int) -> Problem:
    num_bytes = end - offset
    if end == len(data) and _is_torn(data, offset):
        return Problem(f"its last {num_bytes} bytes are an incomplete frame {INTERRUPTED} and were skipped", torn=True)
    return Problem(f"bytes {offset} to {end - 1} are damaged and were skipped")


def _is_torn(data: bytes, offset: int) -> bool:
    remaining = len(data) - offset
    if remaining < _FRAME_HEADER.size:
        return _FRAME_MAGIC.startswith(data[offset : offset + len(_FRAME_MAGIC)])
    magic, length, _ = _FRAME_HEADER.unpack_from(data, offset)
    return magic == _FRAME_MAGIC and remaining < _FRAME_HEADER.size + length
