"""The local path behind what the user calls a place to write to."""

from __future__ import annotations

import os

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import InputError


def local_path(path: str | os.PathLike[str]) -> str:
    """The local path that a path or URL names. Raises ``InputError`` for any other URL: a Run is appended to."""
    filesystem, local = url_to_fs(os.fspath(path))
    if not isinstance(filesystem, LocalFileSystem):
        raise InputError(f"A Run cannot be written to '{path}': only local paths can be appended to. Pass a local one.")
    return local
