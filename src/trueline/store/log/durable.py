"""Writes local files so that they are complete or do not exist, whenever the process dies or the disk fills up."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from trueline.schema.descriptor import Descriptor
from trueline.store.file_names import TEMPORARY_SUFFIX


def append(fd: int, data: bytes, size_bytes: int) -> int:
    """Append to a file of ``size_bytes`` and return its new size; on an ``OSError`` the file is as it was before."""
    written = 0
    try:
        while written < len(data):
            written += os.write(fd, data[written:] if written else data)
    except OSError:
        os.ftruncate(fd, size_bytes)
        raise
    return size_bytes + written


def write_at(fd: int, data: bytes | memoryview, offset: int) -> int:
    """Write all of ``data`` at ``offset`` and return the offset after it; on an ``OSError`` any of it may be there."""
    remaining = memoryview(data).cast("B")
    while len(remaining):
        written = os.pwrite(fd, remaining, offset)
        remaining, offset = remaining[written:], offset + written
    return offset


def replace_file(path: str, data: bytes) -> None:
    """Put a file with ``data`` at ``path``, where it survives a power cut from the moment this returns; on an
    ``OSError`` it is there, or whatever was before.
    """
    put_file(path, data)
    sync(os.path.dirname(path))


def put_file(path: str, data: bytes) -> None:
    """As ``replace_file``, but the name survives a power cut only once its directory is synced. On an ``OSError``
    whatever was there before stays.
    """
    file = _open_replacement(path, data, settle=lambda fd: os.fsync(fd))
    with contextlib.suppress(OSError):  # which could say nothing new of what is fsynced
        file.close()


def make_folder(path: str) -> None:
    """Make a directory, and those that it lies in, which survive a power cut from the moment this returns."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
        sync(parent)


def open_replacement(path: str, data: bytes) -> Descriptor:
    """The descriptor, for appending, of a file with ``data`` that is put at ``path``; as ``replace_file``, no fsync.

    A process that dies leaves either file whole; a power cut may leave an empty one.
    """
    return _open_replacement(path, data, settle=_leave)


def _open_replacement(path: str, data: bytes, *, settle: Callable[[int], None]) -> Descriptor:
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}{TEMPORARY_SUFFIX}")
    file = Descriptor(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666))
    try:
        append(file.number, data, 0)
        settle(file.number)
        os.replace(temporary, path)
    except OSError:
        file.close()
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    return file


def _leave(fd: int) -> None:
    """Let the kernel write the file when it likes."""


def sync(path: str) -> None:
    """Make what is in a file, or names in a directory, survive a power cut, where the file system can promise that and
    lets us ask.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):  # no fsync of directories; a directory we may not read
            raise
