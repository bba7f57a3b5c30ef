"""The file system behind what the user calls a path: local, or any that fsspec knows by its URL."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import InputError, RunError
from trueline.schema.text.reading import why
from trueline.schema.text.secrets import without_credentials


def filesystem_of(path: str | os.PathLike[str]) -> tuple[AbstractFileSystem, str]:
    """The file system of a path or URL, and the path within it. Raises ``RunError`` for one that cannot be opened."""
    try:
        filesystem, inner_path = url_to_fs(os.fspath(path))
        return filesystem if isinstance(filesystem, LocalFileSystem) else cast(Any, _Remote(filesystem)), inner_path
    except Exception as error:  # each kind of file system raises errors of its own
        label = without_credentials(os.fspath(path))
        raise RunError(
            f"'{label}' cannot be opened ({type(error).__name__}: {why(error)}). Check the address, and what it needs "
            "to be reached: a package for its kind, credentials, or the archive itself."
        ) from None


class _Remote:
    """A file system whose every failure is an ``OSError``: a damaged archive raises what its library has."""

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._filesystem, name)
        return functools.partial(_call, attribute) if callable(attribute) else attribute


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


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
