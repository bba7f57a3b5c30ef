"""Copies files from one place to another and reads each back; counts what it did, and keeps below a rate."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueline.store import file_names
from trueline.store.collecting.sides import Side
from trueline.store.file_names import PartName
from trueline.store.log.durable import make_folder, replace_file, sync
from trueline.store.rows import TABLE_SCHEMAS

CHUNK = 8 << 20
"""Bytes that are held at a time of a file that is copied."""

LISTINGS = 3
"""Times that a place is listed whose parts are merged meanwhile."""


class Budget:
    """Keeps copying below so many bytes a second, if any are given."""

    def __init__(self, max_bytes_per_s: float | None) -> None:
        self._rate = max_bytes_per_s
        self._free_at = time.monotonic()

    def spend(self, num_bytes: int) -> None:
        """Wait until the bytes before these have had their time."""
        if self._rate:
            time.sleep(max(0.0, self._free_at - time.monotonic()))
            self._free_at = max(self._free_at, time.monotonic()) + num_bytes / self._rate


@dataclass(slots=True)
class Work:
    """What was done so far, and what is to be said of it."""

    budget: Budget
    reads_again: bool
    copied: int = 0
    copied_bytes: int = 0
    problems: list[str] = field(default_factory=list[str])

    def did(self, num_bytes: int) -> None:
        """Count a file."""
        self.copied += 1
        self.copied_bytes += num_bytes


def put_file(side: Side, name: str, into: Side, work: Work) -> None:
    """Copy a file that may change, if it is there and not the same already."""
    if name in side.files:
        with contextlib.suppress(FileNotFoundError):
            put_bytes(side.read(name), into, name, work)


def put_bytes(data: bytes, into: Side, name: str, work: Work) -> None:
    """Write a file that may change, if it is not the same already. Raises ``OSError`` where it is another one then."""
    if into.files.get(name) == len(data) and into.read(name) == data:
        return
    work.budget.spend(len(data))
    if into.is_local:
        make_folder(posixpath.dirname(into.path(name)))
        replace_file(into.path(name), data)
    else:
        into.fs.pipe_file(into.path(name), data)
    if into.read(name) != data:
        raise OSError(f"'{into.label}' does not keep what is written to it: '{name}' is another file when it is read")
    work.did(len(data))


def copy_all(side: Side, into: Side, work: Work) -> None:
    """What never changes. A part that was merged into another one since the place was listed is found in that."""
    copied_names: set[str] = set()
    for _ in range(LISTINGS):
        names = [name for name in side.files if _never_changes(name) and name not in copied_names]
        for name in names:
            if into.files.get(name) != side.files[name]:
                copied_names |= {name} if _copy(side, name, into, work) else set()
            else:
                copied_names.add(name)
                if work.reads_again and PartName.parse(posixpath.basename(name)):
                    with contextlib.suppress(FileNotFoundError), side.fs.open(side.path(name), "rb") as source:
                        _name_damage(side, name, _pour(source, lambda data: None, Budget(None))[0], work)
        if copied_names.issuperset(names):
            return
        side = side.fresh()  # a name that is gone was merged into a part that the first listing does not have


def _never_changes(name: str) -> bool:
    folder, _, base = name.rpartition("/")
    top = folder.partition("/")[0]
    if top in (file_names.WORKERS_DIR, file_names.RECORDS_DIR, *TABLE_SCHEMAS):
        return PartName.parse(base) is not None
    return top == file_names.TENSORS_DIR and file_names.tensors_step(base) is not None


def _name_damage(side: Side, name: str, crc: int, work: Work) -> None:
    part = PartName.parse(posixpath.basename(name))
    if part is not None and part.crc != crc:
        work.problems.append(f"'{posixpath.join(side.label, name)}' is damaged, and was copied as it is")


def _copy(side: Side, name: str, into: Side, work: Work) -> bool:
    """Copy a file that never changes, a chunk at a time, and read it back; False where it is gone."""
    path = into.path(name)
    temporary = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}{file_names.TEMPORARY_SUFFIX}")
    try:
        with side.fs.open(side.path(name), "rb") as source:
            if into.is_local:
                make_folder(posixpath.dirname(path))
                with Path(temporary).open("wb") as target:
                    crc, size = _pour(source, target.write, work.budget)
                    target.flush()
                    os.fsync(target.fileno())
                os.replace(temporary, path)
                sync(posixpath.dirname(path))
            else:
                with into.fs.open(path, "wb") as target:
                    crc, size = _pour(source, target.write, work.budget)
    except FileNotFoundError:
        if name in side.fresh().files:
            raise
        return False
    with into.fs.open(path, "rb") as copy:
        written = _pour(copy, lambda data: None, Budget(None))
    if written != (crc, size):
        raise OSError(f"'{into.label}' does not keep what is written to it: '{name}' is another file when it is read")
    _name_damage(side, name, crc, work)
    work.did(size)
    return True


def _pour(source: Any, write: Callable[[bytes], Any], budget: Budget) -> tuple[int, int]:
    """Give ``write`` all of ``source``; the CRC32 and the number of its bytes."""
    crc = size = 0
    while data := source.read(CHUNK):
        budget.spend(len(data))
        write(data)
        crc, size = zlib.crc32(data, crc), size + len(data)
    return crc, size
