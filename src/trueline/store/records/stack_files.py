"""The call stacks of one rank: few, found early, stored once in a small file that is replaced when more come."""

from __future__ import annotations

import json
import posixpath
import zlib
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from trueline.schema.columns.records import StackRecord
from trueline.schema.text.reading import why
from trueline.store import file_names
from trueline.store.file_names import Problem
from trueline.store.log.durable import replace_file
from trueline.store.log.listing import names_in
from trueline.store.log.parts import MOST_ROWS, encode_part
from trueline.store.records.arrays import from_values

STACK_SCHEMA: pa.Schema = pa.schema([("id", pa.int32()), ("frames", pa.list_(pa.string()))])


_CHECKSUM = b"trueline.crc32"


class DamagedStacks(Exception):
    """A file of call stacks cannot be read."""


class StackFile:
    """The stacks of one rank; ``save`` makes those durable that came since. Every failure is an ``OSError``.

    Where it ``goes_on`` with the stacks of an earlier start of the job, ids here are those given plus ``base``.
    """

    def __init__(self, path: str, *, goes_on: bool = False) -> None:
        self._path = path
        self._frames: dict[int, tuple[str, ...]] = _stacks_in(path) if goes_on else {}
        self._unsaved = False
        self.base: int = max(self._frames, default=-1) + 1

    def add(self, record: StackRecord) -> None:
        """Take a stack."""
        number = self.base + record.id
        if self._frames.get(number) != record.frames:
            self._frames[number] = record.frames
            self._unsaved = True

    def save(self) -> None:
        """Put a file with all stacks in the place of the one before, if any came since."""
        if self._unsaved:
            replace_file(self._path, encode_stacks(self._frames))
            self._unsaved = False


def _stacks_in(path: str) -> dict[int, tuple[str, ...]]:
    """What a file holds; nothing where it is not there, or damaged: the rows that refer to it are older ones."""
    try:
        with open(path, "rb") as file:
            return decode_stacks(file.read())
    except (FileNotFoundError, DamagedStacks):
        return {}


def encode_stacks(frames: Mapping[int, tuple[str, ...]]) -> bytes:
    """The Parquet file for stacks by id."""
    ids = sorted(frames)
    columns = [ids, [frames[number] for number in ids]]
    arrays = [from_values(values, kind) for values, kind in zip(columns, STACK_SCHEMA.types, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=STACK_SCHEMA.with_metadata({_CHECKSUM: _checksum(frames)}))
    return encode_part(table, dictionary=["frames.list.element"])


def decode_stacks(data: bytes) -> dict[int, tuple[str, ...]]:
    """Stacks by id. Raises ``DamagedStacks``."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if file.metadata.num_rows > MOST_ROWS * len(data):
            raise ValueError(f"its {len(data):,} bytes declare {file.metadata.num_rows:,} rows")
        table = file.read(use_threads=False)
        ids, frames = table["id"].to_pylist(), table["frames"].to_pylist()
        stacks = {int(number): tuple(map(str, lines)) for number, lines in zip(ids, frames, strict=True)}
    except Exception as error:  # Arrow has errors of its own, and raises Python's as well
        raise DamagedStacks(f"it is not readable as Parquet ({why(error)})") from None
    written = (table.schema.metadata or {}).get(_CHECKSUM)
    if written is not None and written != _checksum(stacks):
        raise DamagedStacks("its call stacks are not those that were written")
    return stacks


def has_checksum(data: bytes) -> bool:
    """True if a file says what its call stacks were; those of older versions do not."""
    return _CHECKSUM in (pq.read_schema(pa.BufferReader(data)).metadata or {})


def _checksum(frames: Mapping[int, tuple[str, ...]]) -> bytes:
    """CRC32 of the call stacks, whatever a damaged footer makes of the pages that hold them."""
    text = json.dumps([[number, frames[number]] for number in sorted(frames)])
    return f"{zlib.crc32(text.encode()):08x}".encode()


def read_stacks(fs: AbstractFileSystem, root: str, problems: list[Problem]) -> dict[int, dict[int, tuple[str, ...]]]:
    """Stacks by rank and id of the Run at ``root``; files that cannot be read are named in ``problems``."""
    stacks: dict[int, dict[int, tuple[str, ...]]] = {}
    folder = posixpath.join(root, file_names.STACKS_DIR)
    for name in names_in(fs, folder):
        rank = file_names.stacks_rank(name)
        if rank is None:
            continue
        try:
            stacks[rank] = decode_stacks(fs.cat_file(posixpath.join(folder, name)))
        except (DamagedStacks, OSError) as error:
            file = posixpath.join(file_names.STACKS_DIR, name)
            problems.append(Problem(f"{error}; the call stacks were skipped", file=file))
    return stacks
