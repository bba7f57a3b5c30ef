"""Sealed parts: rows of one rank in one Parquet file, written once and never changed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from trueline.store.layout import PartName


class DamagedPart(Exception):
    """The bytes of a part are not those that were sealed."""


def encode_part(rows: pa.Table, *, dictionary: Sequence[str] = ()) -> bytes:
    """The Parquet file for ``rows``; values of the leaf columns ``dictionary`` repeat, those of all others hardly."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        use_dictionary=list(dictionary) or False,
        use_byte_stream_split=True,
        write_statistics=False,
        write_page_checksum=True,
    )
    return sink.getvalue().to_pybytes()


def decode_part(data: bytes, name: PartName, columns: Sequence[str]) -> pa.Table:
    """Those of the columns that a part has, after the checksum in its name and those of the pages were verified.

    Raises ``DamagedPart`` with what is wrong.
    """
    crc = zlib.crc32(data)
    if crc != name.crc:
        raise DamagedPart(f"its {len(data)} bytes have CRC32 {crc:08x} where {name.crc:08x} was sealed")
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        present = set(file.schema_arrow.names)
        return file.read(columns=[column for column in columns if column in present], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedPart(f"it is not readable as Parquet ({error})") from None
