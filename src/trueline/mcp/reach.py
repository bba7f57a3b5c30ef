"""Which Runs a client may read: those below the directories that the server was given, and nothing else."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueline.schema.errors import InputError
from trueline.store import file_names

TRIAL = "trial.json"
MOST_FOLDERS = 20_000
"""Folders that are looked through for Runs: a home directory has more, and a client waits."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Paths of Runs, the newest first; ``is_whole`` is false where there are more folders than are looked through."""

    paths: tuple[str, ...]
    is_whole: bool


class Reach:
    """Runs below ``roots``, local directories or URLs. A link that leads out of them, also within a Run, is not
    followed. Raises ``InputError`` for a root that is none.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        for root in roots:
            if "://" not in root and not os.path.isdir(root):
                raise InputError(f"'{root}' is no directory. Pass the directory that holds the Runs.")
        self.roots: tuple[str, ...] = tuple(
            root.rstrip("/") if "://" in root else os.path.realpath(root) for root in roots
        )

    def path_of(self, name: str) -> str:
        """The path of the Run that a client calls ``name``: its path below a root, or the whole of it. Raises
        ``InputError`` where that is not below one.
        """
        if not name or "\0" in name:
            raise InputError("The name of the Run is empty. The tool `runs` lists what there is.")
        if "://" in name or "::" in name:
            return self._url(name)
        for root in self.roots:
            if "://" in root:
                continue
            path = os.path.realpath(os.path.join(root, name))
            if _is_below(path, root) and os.path.exists(path):
                self._require_no_way_out(path)
                return path
        for root in self.roots:
            if "://" in root and ".." not in name.split("/") and not name.startswith("/"):
                return f"{root}/{name}"
        raise self._refusal(name)

    def name_of(self, path: str) -> str:
        """What a client calls the Run at ``path``."""
        for root in self.roots:
            if path == root or path.startswith(f"{root}/"):
                return path[len(root) + 1 :] or posixpath.basename(root)
        return path

    def listing(self) -> Listing:
        """All Runs below the local roots; those of a URL are asked for by name."""
        written: dict[str, float] = {}
        num_folders = 0
        for folder, manifest in self._folders():
            num_folders += 1
            if manifest is not None:
                written[folder] = manifest
            if num_folders >= MOST_FOLDERS:
                break
        paths = sorted(written, key=lambda path: (-written[path], path))
        return Listing(tuple(paths), is_whole=num_folders < MOST_FOLDERS)

    def _folders(self) -> Iterator[tuple[str, float | None]]:
        """Each folder, and when its manifest was written where it is a Run; none below a Run or a trial."""
        for root in self.roots:
            if "://" in root:
                continue
            for folder, folders, files in os.walk(root):
                manifest = None
                if file_names.MANIFEST in files:
                    manifest = os.stat(os.path.join(folder, file_names.MANIFEST), follow_symlinks=False).st_mtime
                    folders.clear()
                # a trial leaves a Run of each kind of run that it made: dozens, which nobody asks about
                if TRIAL in files:
                    folders.clear()
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                yield folder, manifest

    def _url(self, name: str) -> str:
        is_chained = "::" in name or ".." in name.split("/")
        if not is_chained and any("://" in root and name.startswith(f"{root}/") for root in self.roots):
            return name
        raise self._refusal(name)

    def _require_no_way_out(self, path: str) -> None:
        """Raises ``InputError`` where a link in the Run at ``path``, or beside it, leads out of all roots."""
        groups = Path(path).parent.glob(f"{Path(path).name}{file_names.OF_GROUP}*")
        for top in (path, *map(str, groups)):
            for folder, folders, files in os.walk(top):
                for name in (*folders, *files):
                    inner = os.path.join(folder, name)
                    if os.path.islink(inner) and not any(
                        _is_below(os.path.realpath(inner), root) for root in self.roots
                    ):
                        raise InputError(
                            f"'{self.name_of(inner)}' is a link that leads out of {self._where}, so the Run is not "
                            "read. Copy what it leads to into the Run."
                        )

    def _refusal(self, name: str) -> InputError:
        return InputError(
            f"'{name}' is no Run below {self._where}, and nothing else is read. The tool `runs` lists what there is."
        )

    @property
    def _where(self) -> str:
        return " or ".join(f"'{root}'" for root in self.roots)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
