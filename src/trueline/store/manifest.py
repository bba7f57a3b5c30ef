"""The manifest of a Run, or why there is none."""

from __future__ import annotations

import os
import posixpath
import shlex

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import NoRunYet, RunError
from trueline.schema.files.run_manifest import CommandEnd, Manifest
from trueline.schema.text.documents import encode
from trueline.store import file_names
from trueline.store.log.durable import replace_file
from trueline.store.log.listing import names_in
from trueline.store.migrate import read_manifest


def open_manifest(fs: AbstractFileSystem, root: str, path: str) -> Manifest:
    """The manifest of the Run at ``root``, which the user calls ``path``. Raises ``RunError`` where there is none, or
    one that this version cannot read.
    """
    try:
        exists = fs.exists(root)
    except Exception as error:  # each kind of file system raises errors of its own
        raise RunError(
            f"'{path}' cannot be reached ({type(error).__name__}: {error}). Check the address and your credentials."
        ) from None
    if not exists:
        raise NoRunYet(f"There is no Run at '{path}': nothing is there. Check the path.")
    if not fs.isdir(root):
        raise RunError(f"'{path}' is a file, and a Run is a directory. Pass the directory that holds manifest.json.")
    names = names_in(fs, root)
    if file_names.MANIFEST not in names:
        raise _not_a_run(fs, root, path, names)
    try:
        data = fs.cat_file(posixpath.join(root, file_names.MANIFEST))
    except OSError as error:
        raise RunError(f"The manifest.json of '{path}' cannot be read ({error}). Check its permissions.") from None
    return read_manifest(data, path)


def keep_end(path: str, end: CommandEnd) -> None:
    """Write how the command ended into the manifest of the local Run at ``path``, which nobody writes any more. Raises
    ``RunError``, ``OSError``.
    """
    manifest = open_manifest(LocalFileSystem(), path, path).model_copy(update={"ended": end})
    replace_file(os.path.join(path, file_names.MANIFEST), encode(manifest.model_dump()))


def _not_a_run(fs: AbstractFileSystem, root: str, path: str, names: list[str]) -> RunError:
    """The error of a directory without a manifest; of one in which a Run may yet begin ``NoRunYet``."""
    if not names:
        return NoRunYet(f"'{path}' is an empty directory, not a Run. Check the path, or record into it first.")
    runs = [name for name in names if fs.exists(posixpath.join(root, name, file_names.MANIFEST))]
    if runs:
        return RunError(
            f"'{path}' is not a Run but holds {len(runs)}: {', '.join(runs)}. Pass one of them; "
            f"`trueline view {shlex.quote(path)}` shows all."
        )
    error = NoRunYet if all(map(file_names.belongs_to_run, names)) else RunError
    return error(
        f"'{path}' is not a Run: it has no manifest.json. Pass a directory that trueline.watch or `trueline run` wrote."
    )
