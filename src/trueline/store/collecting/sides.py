"""Places that hold the files of a Run, or some of them: those that are collected from, and that to collect into."""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import InputError, RunError
from trueline.schema.files.run_lock import living
from trueline.schema.text.documents import decode
from trueline.schema.text.reading import why
from trueline.schema.text.secrets import without_credentials
from trueline.store import file_names
from trueline.store.file_names import PartName
from trueline.store.filesystem import filesystem_of


class NothingYet(RunError):
    """There is nothing at any source."""


class Side:
    """A place that holds the files of a Run, or some of them, as listed when it was made; ``suffix`` follows the name
    of the Run where it is that of a further group of ranks.
    """

    def __init__(self, path: str | os.PathLike[str], *, suffix: str = "", folder: str = "") -> None:
        self._address, self.suffix, self._folder = os.fspath(path), suffix, folder
        self.label = (
            posixpath.join(without_credentials(self._address), folder) if folder else without_credentials(self._address)
        )
        self.fs, top = filesystem_of(self._address)
        self.root = posixpath.join(top, folder) if folder else top

    def fresh(self) -> Side:
        """The place listed again."""
        return Side(self._address, suffix=self.suffix, folder=self._folder)

    def at(self, folder: str) -> Side:
        """The Run inside of it that lies in ``folder``."""
        return Side(self._address, suffix=self.suffix, folder=folder)

    @property
    def is_local(self) -> bool:
        """True if files can be replaced and synced."""
        return isinstance(self.fs, LocalFileSystem)

    @cached_property
    def all_files(self) -> Mapping[str, int]:
        """Bytes of each file below, by its path within; none where there is nothing."""
        with contextlib.suppress(AttributeError):
            # object stores list from a cache, which does not know what ranks wrote meanwhile
            self.fs.invalidate_cache(self.root)
        try:
            entries: Mapping[str, Any] = self.fs.find(self.root, detail=True)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RunError(
                f"'{self.label}' cannot be reached ({why(error)}). Check the address and its permissions."
            ) from None
        root = self.root.rstrip("/") + "/"
        return {
            name.removeprefix(root): int(entry.get("size") or 0)
            for name, entry in entries.items()
            if name.startswith(root) and not name.endswith(file_names.TEMPORARY_SUFFIX)
        }

    @cached_property
    def files(self) -> Mapping[str, int]:
        """Bytes of each file of this Run by its path, without Runs inside of it and what is no file of a Run."""
        return {
            name: size
            for name, size in self.all_files.items()
            if file_names.belongs_to_run(top := name.partition("/")[0]) and top != file_names.MODELS_DIR
        }

    @cached_property
    def folders(self) -> Sequence[str]:
        """Folders of the Runs inside of it: '' for its own, and those of further models."""
        split = (name.split("/") for name in self.all_files)
        models = {"/".join(parts[:2]) for parts in split if parts[0] == file_names.MODELS_DIR and len(parts) > 2}
        return ["", *sorted(models)] if self.files else sorted(models)

    @cached_property
    def by_folder(self) -> Mapping[str, Sequence[str]]:
        """Names of the files right in each folder."""
        names_by_folder: dict[str, list[str]] = {}
        for name in sorted(self.files):
            folder, _, base = name.rpartition("/")
            names_by_folder.setdefault(folder, []).append(base)
        return names_by_folder

    def inside(self, folder: str) -> Sequence[str]:
        """Names of the files right in ``folder``."""
        return self.by_folder.get(folder, ())

    @cached_property
    def parts(self) -> Mapping[tuple[str, int], Sequence[PartName]]:
        """The sealed parts by folder and rank."""
        parts_by_key: dict[tuple[str, int], list[PartName]] = {}
        for folder, names in self.by_folder.items():
            for part in filter(None, map(PartName.parse, names)):
                parts_by_key.setdefault((folder, part.rank), []).append(part)
        return parts_by_key

    @cached_property
    def ranks(self) -> Collection[int]:
        """Ranks that said what they are."""
        return _without_none(map(file_names.env_rank, self.inside(file_names.ENV_DIR)))

    @cached_property
    def unclosed(self) -> Collection[int]:
        """Ranks that have a journal."""
        return _without_none(map(file_names.journal_rank, self.inside(file_names.JOURNAL_DIR)))

    @cached_property
    def wrote(self) -> Collection[int]:
        """Ranks that left any file."""
        return (
            self.ranks
            | _without_none(map(rank_of_journal, self.inside(file_names.JOURNAL_DIR)))
            | {rank for _, rank in self.parts}
        )

    def path(self, name: str) -> str:
        """The path of a file for its file system."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes:
        """All of a file."""
        return self.fs.cat_file(self.path(name))

    def document(self, name: str) -> dict[str, Any] | None:
        """A JSON document; None where it is not there, or damaged."""
        try:
            return decode(self.read(name))[0]
        except (OSError, ValueError):
            return None

    def remove(self, name: str) -> None:
        """Remove a file that others have made superfluous."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))


def rank_of_journal(name: str) -> int | None:
    """The rank whose journal has this name, of rows or of recorded steps; None where it is none."""
    rank = file_names.journal_rank(name)
    rank = file_names.records_journal_rank(name) if rank is None else rank
    table = file_names.table_journal(name)
    return rank if table is None else table[0]


def _without_none(ranks: Iterable[int | None]) -> frozenset[int]:
    return frozenset(rank for rank in ranks if rank is not None)


def sides_of(sources: Sequence[str | os.PathLike[str]]) -> list[Side]:
    """Each source once, with the Runs beside it of further groups of ranks. Raises where there is nothing to copy."""
    sides: dict[str, Side] = {}
    for source in sources:
        path = os.fspath(source).rstrip("/") or os.fspath(source)
        if not path:
            raise InputError("A place to collect from is empty. Pass the directories that the ranks wrote to.")
        groups = sorted(glob.glob(f"{glob.escape(path)}{file_names.OF_GROUP}*"))
        candidates = [Side(path), *(Side(group, suffix=group.removeprefix(path)) for group in groups)]
        candidates = [side for side in candidates if side.folders]
        if not candidates:
            exists = filesystem_of(path)[0].exists(filesystem_of(path)[1])
            problem = "holds nothing that ranks wrote" if exists else "is not there"
            raise NothingYet(
                f"'{without_credentials(path)}' {problem}. Pass the directory that was --out on that machine."
            )
        for side in candidates:
            # one place may be given by several paths
            sides.setdefault(os.path.realpath(side.root) if side.is_local else side.root, side)
    if not sides:
        raise InputError("Nothing to collect from was given. Pass the directories that the ranks wrote to.")
    return list(sides.values())


def open_target(dst: str, local_sources: Iterable[str]) -> Side:
    """The place to collect into. Raises ``RunError`` where it cannot be reached, ``InputError`` where it must be left
    alone.
    """
    if not dst:
        raise InputError("The place to collect into is empty. Pass a directory, or a URL such as s3://bucket/run.")
    into = Side(dst)
    present = into.all_files
    # object stores may have a file and files below its name at once
    is_file = bool(into.fs.exists(into.root) and not into.fs.isdir(into.root))
    if is_file:
        raise InputError(f"'{into.label}' is a file, and a Run is a directory. Pass another place.")
    for source in local_sources if into.is_local else ():
        if os.path.realpath(source) == os.path.realpath(into.root):
            raise InputError(f"'{into.label}' is both collected from and collected into. Pass another place.")
    # what was collected replaces files: nothing else may be lost by a wrong path
    foreign_names = sorted(name for name in present if not file_names.belongs_to_run(name.partition("/")[0]))
    if foreign_names:
        raise InputError(
            f"'{into.label}' holds what is not of a Run ('{foreign_names[0]}'), so it is left alone. Pass a place "
            "that is empty or does not exist."
        )
    writer = living(into.root) if into.is_local and os.path.isdir(into.root) else None
    if writer is not None:
        raise InputError(
            f"'{into.label}' is being written by {writer.name}: it is where ranks write, not what was collected. Pass "
            "another place."
        )
    return into
