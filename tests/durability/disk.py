"""A disk between a writer and its files: it counts calls, refuses one of them, and remembers what would be on it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

CALLS = (
    *("open", "write", "pwrite", "pread", "fsync", "ftruncate"),
    *("replace", "remove", "mkdir", "close", "stat", "utime"),
)
FAILURES = ("ENOSPC", "EIO", "EMFILE", "short")


@dataclass
class Disk:
    """Sees the calls of ``os`` on what is under ``root`` while it is ``mounted``.

    The ``fails_at``-th, counted from 1, fails with ``how``: the name of an errno, or ``short``, half a write. With
    ``lasting`` all that follow fail too. ``log`` has what would change the disk, in order.
    """

    root: str
    fails_at: int = 0
    how: str = "EIO"
    lasting: bool = False
    num_calls: int = 0
    failed: list[str] = field(default_factory=list)
    log: list[tuple[Any, ...]] = field(default_factory=list)
    _open: dict[int, str] = field(default_factory=dict)
    _real: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Disk]:
        """Stand in between."""
        self._real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, self._seen(name))
        try:
            yield self
        finally:
            for name, call in self._real.items():
                setattr(os, name, call)

    def _seen(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            path = self._path_of(args[0])
            if path is None:
                return real(*args, **kwargs)
            self.num_calls += 1
            if self.num_calls == self.fails_at or (self.lasting and 0 < self.fails_at < self.num_calls):
                if name == "close":
                    real(*args)  # the descriptor is gone also where the system says that it could not close it
                    self._open.pop(args[0], None)
                if self.how != "short":
                    self.failed.append(f"{name} {os.path.basename(path)}")
                    raise OSError(getattr(errno, self.how), os.strerror(getattr(errno, self.how)), path)
                if name in ("write", "pwrite"):
                    self.failed.append(f"{name} {os.path.basename(path)}")
                    args = (args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
                elif name == "close":
                    return None
            # What was written is there without: a real fsync would only take time.
            done = None if name == "fsync" else real(*args, **kwargs)
            self._note(name, path, args, done)
            return done

        return call

    def _path_of(self, where: Any) -> str | None:
        path = self._open.get(where) if isinstance(where, int) else os.path.abspath(os.fspath(where))
        return path if path is not None and (path + "/").startswith(self.root + "/") else None

    def _note(self, name: str, path: str, args: tuple[Any, ...], done: Any) -> None:
        if name == "open":
            self._open[done] = path
            if args[1] & os.O_CREAT:
                self.log.append(("create", path, os.fstat(done).st_ino, bool(args[1] & os.O_TRUNC)))
        elif name == "close":
            self._open.pop(args[0], None)
        elif name in ("write", "pwrite"):
            offset = args[2] if name == "pwrite" else os.lseek(args[0], 0, os.SEEK_CUR) - done
            self.log.append(("write", os.fstat(args[0]).st_ino, offset, bytes(args[1])[:done]))
        elif name == "ftruncate":
            self.log.append(("truncate", os.fstat(args[0]).st_ino, args[1]))
        elif name == "fsync":
            self.log.append(("sync", path if stat.S_ISDIR(os.fstat(args[0]).st_mode) else os.fstat(args[0]).st_ino))
        elif name == "replace":
            self.log.append(("rename", path, os.path.abspath(args[1])))
        elif name in ("remove", "mkdir"):
            self.log.append((name, path))
