"""The file system behind what the user calls a path: local, or any that fsspec knows by its URL."""

from __future__ import annotations

import os

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import InputError, RunError


def filesystem_of(path: str | os.PathLike[str]) -> tuple[AbstractFileSystem, str]:
    """The file system of a path or URL, and the path within it. Raises ``RunError`` for one that cannot be opened."""
    try:
        return url_to_fs(os.fspath(path))
    except Exception as error:  # each kind of file system raises errors of its own
        raise RunError(
            f"'{path}' cannot be opened ({type(error).__name__}: {error}). Check the address, and what it needs to be "
            "reached: a package for its kind, credentials, or the archive itself."
        ) from None


def local_path(path: str | os.PathLike[str]) -> str:
    """The local path that a path or URL names. Raises ``InputError`` for any other URL: a Run is appended to."""
    if not os.fspath(path):
        raise InputError("The path for the Run is empty. Pass a directory that is empty or does not exist.")
    scheme, separator, _ = os.fspath(path).partition("://")
    filesystem, local = filesystem_of(path) if not separator or scheme == "file" else (None, "")
    if not isinstance(filesystem, LocalFileSystem):
        raise InputError(
            f"A Run cannot be written to '{path}': a journal is appended to, which only local and mounted file systems "
            "can do. Pass a local path, and copy the Run when it is done: every command reads it there too."
        )
    return local
