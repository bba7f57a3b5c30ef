"""Directories of Runs: which Runs lie in one, and which have come since."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from trueline.store.file_names import MANIFEST

MAX_RUNS = 64
"""Runs of one directory that are shown, those that began last: each is read and judged."""


class RunFolder:
    """A local directory that is no Run itself and holds some."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._listed_paths: set[str] = set()

    def new_runs(self) -> list[str]:
        """Paths of Runs that were not told before, the oldest first; of more than ``MAX_RUNS`` the newest."""
        began_by_path = {
            path: os.stat(os.path.join(path, MANIFEST)).st_ctime for path in _runs_in(self.path, self._listed_paths)
        }
        self._listed_paths.update(began_by_path)
        return sorted(began_by_path, key=lambda path: began_by_path[path])[-MAX_RUNS:]

    def forget(self, path: str) -> None:
        """Tell of the Run at ``path`` again: it could not be read yet."""
        self._listed_paths.discard(path)


def folders_among(paths: Sequence[str | os.PathLike[str]]) -> list[RunFolder]:
    """Those of ``paths`` that are directories of Runs."""
    return [RunFolder(os.fspath(path)) for path in paths if _holds_runs(os.fspath(path))]


def _holds_runs(path: str) -> bool:
    is_run = os.path.exists(os.path.join(path, MANIFEST))
    return os.path.isdir(path) and not is_run and next(_runs_in(path), None) is not None


def _runs_in(folder: str, listed_paths: Collection[str] = ()) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.path not in listed_paths and entry.is_dir() and os.path.exists(os.path.join(entry.path, MANIFEST)):
            yield entry.path
