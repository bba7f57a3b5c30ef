"""The call stacks of one rank: few, found early, stored once in a small file that is replaced when more come."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from trueline.schema.records import StackRecord
from trueline.store import layout
from trueline.store.arrays import from_values
from trueline.store.durable import replace_file
from trueline.store.listing import names_in
from trueline.store.parts import encode_part

STACK_SCHEMA: pa.Schema = pa.schema([("id", pa.int32()), ("frames", pa.list_(pa.string()))])


class DamagedStacks(Exception):
    """A file of call stacks cannot be read."""


class StackFile:
    """The stacks of one rank; ``save`` makes those durable that came since. Every failure is an ``OSError``.

    Where it ``goes_on`` with what an earlier start of the job left, ids here are those given plus ``base``.
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
    table = pa.Table.from_arrays(arrays, schema=STACK_SCHEMA)
    return encode_part(table, dictionary=["frames.list.element"])


def decode_stacks(data: bytes) -> dict[int, tuple[str, ...]]:
    """Stacks by id. Raises ``DamagedStacks``."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(use_threads=False)
        stacks = zip(table["id"].to_pylist(), table["frames"].to_pylist(), strict=True)
        return {number: tuple(frames) for number, frames in stacks}
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise DamagedStacks(f"it is not readable as Parquet ({error})") from None


def read_stacks(fs: AbstractFileSystem, root: str, problems: list[str]) -> dict[int, dict[int, tuple[str, ...]]]:
    """Stacks by rank and id of the Run at ``root``; files that cannot be read are named in ``problems``."""
    stacks: dict[int, dict[int, tuple[str, ...]]] = {}
    folder = posixpath.join(root, layout.STACKS_DIR)
    for name in names_in(fs, folder):
        rank = layout.stacks_rank(name)
        if rank is None:
            continue
        try:
            stacks[rank] = decode_stacks(fs.cat_file(posixpath.join(folder, name)))
        except (DamagedStacks, OSError) as error:
            problems.append(f"{layout.STACKS_DIR}/{name}: {error}; the call stacks were skipped")
    return stacks
