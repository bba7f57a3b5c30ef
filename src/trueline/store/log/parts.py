"""Sealed parts: rows of one rank in one Parquet file, written once and never changed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trueline.schema.text.reading import why
from trueline.store.file_names import PartName

MOST_ROWS = 1_000
"""Most rows for each byte of a part: repeated values take hardly any room, but each row has a number of its own."""


class DamagedPart(Exception):
    """The bytes of a part are not those that were sealed."""


def encode_part(rows: pa.Table, *, dictionary: Sequence[str] = (), rows_a_group: int | None = None) -> bytes:
    """The Parquet file for ``rows``; values of the leaf columns ``dictionary`` repeat, those of all others hardly.
    ``rows_a_group`` are decoded together (None: as Parquet likes).
    """
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        row_group_size=rows_a_group,
        compression="zstd",
        use_dictionary=list(dictionary) or False,
        use_byte_stream_split=[leaf for leaf in _numbers(rows.schema) if leaf not in dictionary],
        write_statistics=False,
        write_page_checksum=True,
    )
    return sink.getvalue().to_pybytes()


def _numbers(schema: pa.Schema) -> Iterator[str]:
    """The leaf columns of numbers: Parquet cannot split the bytes of texts."""
    for field in schema:
        if pa.types.is_list(field.type):
            yield f"{field.name}.list.element"
        elif not pa.types.is_string(field.type):
            yield field.name


def decode_part(data: bytes, name: PartName, columns: Sequence[str] | None = None) -> pa.Table:
    """Those of the columns (None: all) that a part has, once the checksum in its name and those of the pages are
    verified.

    Raises ``DamagedPart`` with what is wrong.
    """
    return decode_and_name(data, name, columns)[0]


def decode_and_name(data: bytes, name: PartName, columns: Sequence[str] | None) -> tuple[pa.Table, frozenset[str]]:
    """What ``decode_part`` returns, and the names of all columns of the part."""
    crc = zlib.crc32(data)
    if crc != name.crc:
        raise DamagedPart(f"its {len(data)} bytes have CRC32 {crc:08x} where {name.crc:08x} was sealed")
    rows, present, _ = _columns(pa.BufferReader(data), columns, size_bytes=len(data))
    if (columns is None or "step" in columns) and ("step" not in rows.column_names or rows["step"].null_count):
        raise DamagedPart("it has rows of which the step is not known")
    return rows, present


def footer_crc(source: pa.NativeFile) -> int:
    """The CRC32 of the footer, which says where everything is, from where its length puts it to the end of the file."""
    source.seek(max(source.size() - 8, 0))
    length = int.from_bytes(source.read(4), "little")
    source.seek(max(source.size() - 8 - length, 0))
    return zlib.crc32(source.read())


def read_columns(
    path: str, columns: Sequence[str], *, footer: int, row_range: range | None = None
) -> tuple[pa.Table, int]:
    """Columns of a part that ``decode_part`` took before, without its other bytes: its ``footer_crc`` was ``footer``,
    and pages have checksums of their own. Of rows only those groups are read that meet ``row_range`` (None: all); the
    number is that of the first row.

    Raises ``DamagedPart``, and ``FileNotFoundError`` where it is gone.
    """
    with pa.OSFile(path) as file:
        if footer_crc(file) != footer:
            raise DamagedPart("its footer is another")
        rows, _, first = _columns(file, columns, size_bytes=file.size(), row_range=row_range)
        return rows, first


def _columns(
    source: pa.NativeFile, columns: Sequence[str] | None, *, size_bytes: int, row_range: range | None = None
) -> tuple[pa.Table, frozenset[str], int]:
    try:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        if file.metadata.num_rows > MOST_ROWS * size_bytes:
            raise ValueError(f"its {size_bytes:,} bytes declare {file.metadata.num_rows:,} rows")
        present = file.schema_arrow.names
        names = present if columns is None else [column for column in columns if column in present]
        groups, first = _groups(file, row_range)
        return file.read_row_groups(groups, columns=names, use_threads=False), frozenset(present), first
    except Exception as error:  # Arrow has errors of its own, and raises Python's as well
        raise DamagedPart(f"it is not readable as Parquet ({why(error)})") from None


def _groups(file: pq.ParquetFile, row_range: range | None) -> tuple[list[int], int]:
    """The groups of rows that meet ``row_range``, and the first row of the first of them."""
    num = file.num_row_groups
    ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(num)], dtype=np.int64)
    if row_range is None or not num:
        return list(range(num)), 0
    first, last = (
        min(int(at), num - 1) for at in np.searchsorted(ends, [row_range.start, row_range.stop - 1], side="right")
    )
    return list(range(first, last + 1)), int(ends[first - 1]) if first else 0
