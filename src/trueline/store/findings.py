"""Writes the live Findings of one rank, a line each, with space reserved for them when the disk is full."""

from __future__ import annotations

import contextlib
import errno
import os

from trueline.schema.descriptor import Descriptor
from trueline.store.log.durable import append, sync

SIZE_BYTES = 4096
"""One block of most file systems; a Finding takes less than 1 KiB."""
NUM_DESCRIPTORS = 3
"""More than one: another thread may take the first that is freed."""
_NOTHING_LEFT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class FindingsFile:
    """Appends lines to the file at ``path``, which the first one makes. Every failure is an ``OSError``.

    A file at ``reserve_path`` takes up room on the disk, and descriptors, until a line needs them. Where it cannot be
    made there is no reserve.
    """

    def __init__(self, path: str, *, reserve_path: str) -> None:
        self._path = path
        self._reserve_path = reserve_path
        self._file: Descriptor | None = None
        self._spare: list[Descriptor] = []
        with contextlib.suppress(OSError):
            self._spare.append(Descriptor(os.open(reserve_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)))
            os.write(self._spare[0].number, os.urandom(SIZE_BYTES))  # zeros may be stored as nothing
            while len(self._spare) < NUM_DESCRIPTORS:
                self._spare.append(Descriptor(os.dup(self._spare[0].number)))

    def add(self, line: bytes) -> None:
        """Take a line, which survives a power cut from the moment this returns."""
        try:
            self._append(line)
        except OSError as error:
            if error.errno not in _NOTHING_LEFT or not self._spare:
                raise
            self._give_up()
            self._append(line)

    def close(self, *, removes_reserve: bool = True) -> None:
        """Give up the file handles and, unless its path is another's now, the reserve; the lines stay."""
        self._give_up(removes=removes_reserve)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = Descriptor(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
            sync(os.path.dirname(self._path))
        fd = self._file.number
        append(fd, line, os.fstat(fd).st_size)
        os.fsync(fd)

    def _give_up(self, *, removes: bool = True) -> None:
        spare, self._spare = self._spare, []
        for file in spare:
            with contextlib.suppress(OSError):
                file.close()
        if spare and removes:
            with contextlib.suppress(OSError):
                os.remove(self._reserve_path)
