"""What a power cut leaves of files: all that was synced, and of the rest whatever, in whatever order it was written.

A file's content and its name are made durable apart from each other: the content by fsync of the file, the name by
fsync of its directory, as POSIX promises and no more (Pillai et al., "All File Systems Are Not Created Equal", OSDI
2014).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WAYS = ("nothing", "names", "content", "all", "some", "others")
"""What of the unsynced is there: nothing, only names, only content, all, or each by chance."""


def leave(log: Sequence[tuple[Any, ...]], folder: Path, target: Path, *, way: str, seed: int) -> None:
    """Make ``target`` what is left of ``folder``, which was empty, where the power goes after the calls in ``log``."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir()
    state = _State()
    for entry in log:
        getattr(state, entry[0], state.pass_by)(*entry[1:])
    draw = random.Random(seed)
    keeps_name = {"nothing": 0.0, "content": 0.0, "names": 1.0, "all": 1.0}.get(way, 0.5)
    keeps_content = {"nothing": 0.0, "names": 0.0, "content": 1.0, "all": 1.0}.get(way, 0.5)
    names = dict(state.durable_names)
    for change in state.unsynced_names:
        if draw.random() < keeps_name:
            _rename(names, *change)
    for path in sorted(names):
        at = target / os.path.relpath(path, folder)
        if not at.parent.is_dir():
            continue
        if names[path] is None:
            at.mkdir(exist_ok=True)
        else:
            content = bytearray(state.durable[names[path]])
            for change in state.unsynced[names[path]]:
                if draw.random() < keeps_content:
                    _change(content, *change)
            at.write_bytes(content)


class _State:
    """Files by a number of their own, None for directories; ``names`` as the running system sees them."""

    def __init__(self) -> None:
        self.names: dict[str, int | None] = {}
        self.durable_names: dict[str, int | None] = {}
        self.unsynced_names: list[tuple[str, str | None, int | None]] = []
        self.durable: list[bytearray] = []
        self.unsynced: list[list[tuple[int, bytes | None]]] = []
        self._by_inode: dict[int, int] = {}

    def pass_by(self, *_: Any) -> None:
        """Not a change."""

    def create(self, path: str, inode: int, truncates: bool) -> None:
        if path in self.names:
            file = self.names[path]
            if truncates and file is not None:
                self.unsynced[file].append((0, None))
            return
        self.durable.append(bytearray())
        self.unsynced.append([])
        self._by_inode[inode] = self.names[path] = len(self.durable) - 1
        self.unsynced_names.append((path, None, self.names[path]))

    def write(self, inode: int, offset: int, data: bytes) -> None:
        self.unsynced[self._by_inode[inode]].append((offset, data))

    def truncate(self, inode: int, size_bytes: int) -> None:
        self.unsynced[self._by_inode[inode]].append((size_bytes, None))

    def sync(self, what: int | str) -> None:
        if isinstance(what, str):
            kept = []
            for change in self.unsynced_names:
                if os.path.dirname(change[0]) == what:
                    _rename(self.durable_names, *change)
                else:
                    kept.append(change)
            self.unsynced_names = kept
        else:
            file = self._by_inode[what]
            for change in self.unsynced[file]:
                _change(self.durable[file], *change)
            self.unsynced[file] = []

    def rename(self, path: str, onto: str) -> None:
        self.names[onto] = file = self.names.pop(path)
        self.unsynced_names.append((onto, path, file))

    def remove(self, path: str) -> None:
        del self.names[path]
        self.unsynced_names.append((path, path, None))

    def mkdir(self, path: str) -> None:
        self.names[path] = None
        self.unsynced_names.append((path, None, None))


def _rename(names: dict[str, int | None], path: str, gone: str | None, file: int | None) -> None:
    if gone is not None:
        names.pop(gone, None)
    if gone != path:
        names[path] = file


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset + len(data) - len(content))))
    content[offset : offset + len(data)] = data
