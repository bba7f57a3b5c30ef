"""Claims a directory for a Run. Only an earlier Run is ever removed, and only where overwriting was asked for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from trueline.schema.errors import RunError, RunExistsError
from trueline.schema.files.run_lock import require_ended
from trueline.store import file_names
from trueline.store.log.durable import make_folder
from trueline.store.migrate import read_manifest


@contextlib.contextmanager
def alone_in(path: str) -> Iterator[None]:
    """Make the directory ``path`` and keep other jobs from claiming it meanwhile, where its file system has locks; they
    get ``RunExistsError``.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        yield  # which will be refused
        return
    make_folder(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise claimed_error(path) from None
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


def claimed_error(path: str) -> RunExistsError:
    """The error to raise where another job has the lock on ``path``."""
    return RunExistsError(f"Another job is beginning a Run in '{path}' just now. Pass another path.")


def claim(path: str, *, overwrite: bool) -> None:
    """Empty the directory ``path`` for a Run, or raise ``RunExistsError``."""
    require_free(path, overwrite=overwrite)
    names = os.listdir(path) if os.path.isdir(path) else []
    # The manifest goes last: a directory that is half removed must still be recognised as a Run.
    for name in sorted(filter(file_names.belongs_to_run, names), key=lambda name: name == file_names.MANIFEST):
        _remove(os.path.join(path, name))


def require_free(path: str, *, overwrite: bool) -> None:
    """Raise ``RunExistsError`` where ``path`` holds something that is not to be, or must not be, replaced."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise RunExistsError(f"'{path}' is a file, and a Run is a directory. Pass another path.")
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    if not names:
        return
    if not _is_run(path, names):
        raise RunExistsError(
            f"'{path}' is not empty and not a Trueline Run (it holds {_first_names(names)}), so it is left alone. "
            "Pass a path that is empty or does not exist."
        )
    if not overwrite:
        raise RunExistsError(
            f"'{path}' already holds a Run. Pass another path, or --overwrite (in Python: overwrite=True, or "
            "resume=True to go on with it)."
        )
    require_ended(path)


def claim_share(path: str, rank: int, *, overwrite: bool) -> None:
    """Remove earlier files of ``rank`` from a Run, which would be mixed with new ones; without ``overwrite`` raise."""
    for folder, pattern in file_names.share(rank).items():
        with contextlib.suppress(FileNotFoundError):
            for name in filter(pattern.fullmatch, os.listdir(os.path.join(path, folder))):
                if not overwrite:
                    raise RunExistsError(
                        f"'{path}' already holds '{folder}/{name}' of rank {rank}. Pass another path, or "
                        "--overwrite (in Python: overwrite=True)."
                    )
                _remove(os.path.join(path, folder, name))


def _is_run(path: str, names: list[str]) -> bool:
    if file_names.MANIFEST not in names:
        return False
    if all(map(file_names.belongs_to_run, names)) and file_names.JOURNAL_DIR in names:
        return True
    try:
        with open(os.path.join(path, file_names.MANIFEST), "rb") as file:
            read_manifest(file.read(), path)
    except RunError:
        return False
    return True


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def _first_names(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
