"""The stored values of a Run, one at a time."""

from __future__ import annotations

import os
import posixpath
from collections import OrderedDict

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import RunError
from trueline.store import file_names
from trueline.store.file_names import Problem
from trueline.store.log.listing import names_in
from trueline.store.records.tensor_files import DamagedTensors, TensorContents, TensorValue, explained, read_header

_OPEN_FILES = 64
"""Whose headers are kept: a file for each rank of a step that is looked at."""


class TensorReader:
    """Values of recorded steps of the Run at ``root``."""

    def __init__(self, fs: AbstractFileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._open: OrderedDict[tuple[object, ...], TensorContents] = OrderedDict()

    def read(self, rank: int, step: int, key: str) -> TensorValue:
        """A value; mapped from its file where that is local. Raises ``RunError`` where it is gone or damaged."""
        name = posixpath.join(file_names.TENSORS_DIR, file_names.rank_folder(rank), file_names.tensors_name(step))
        path = posixpath.join(self._root, name)
        local = isinstance(self._fs, LocalFileSystem)
        with explained(path if local else name, key):
            try:
                return self._opened(path, local=local).value(key)
            except FileNotFoundError:
                raise RunError(
                    f"{name} is not in the Run, and the values of step {step} of rank {rank} with it."
                ) from None

    def keys(self, rank: int, step: int, problems: list[Problem]) -> set[str]:
        """The keys of the values of a step; where they cannot be read ``problems`` gets a line, once."""
        if not self.opens(rank, step, problems):
            return set()
        name = posixpath.join(
            self._root, file_names.TENSORS_DIR, file_names.rank_folder(rank), file_names.tensors_name(step)
        )
        return set(self._opened(name, local=isinstance(self._fs, LocalFileSystem)).keys)

    def opens(self, rank: int, step: int, problems: list[Problem]) -> bool:
        """True if values of a step can be read, but for damage within one; else ``problems`` gets a line, once."""
        name = posixpath.join(file_names.TENSORS_DIR, file_names.rank_folder(rank), file_names.tensors_name(step))
        try:
            self._opened(posixpath.join(self._root, name), local=isinstance(self._fs, LocalFileSystem))
        except FileNotFoundError:
            problem = Problem(f"it is gone, and the values of step {step} with it", file=name)
        except (DamagedTensors, OSError, ValueError) as error:
            problem = Problem(f"{error}; its values cannot be read", file=name)
        else:
            return True
        if problem not in problems:
            problems.append(problem)
        return False

    def _opened(self, path: str, *, local: bool) -> TensorContents:
        version = _version(os.stat(path)) if local else (self._fs.size(path),)
        return self._contents(path, version, local=local)

    def _contents(self, path: str, version: tuple[object, ...], *, local: bool) -> TensorContents:
        """Those of a file, which stay open: a step has thousands of values, and as many entries in its header."""
        contents = self._open.pop((path, *version), None)
        if contents is None:
            contents = (
                TensorContents.of_file(path)
                if local
                else TensorContents(lambda begin, end: self._fs.cat_file(path, begin, end), self._fs.size(path))
            )
        self._open[path, *version] = contents
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        return contents

    def problems(self) -> list[Problem]:
        """One line for each file that is not whole, or not that of a step that ended."""
        problems: list[Problem] = []
        for folder in names_in(self._fs, posixpath.join(self._root, file_names.TENSORS_DIR)):
            for name in names_in(self._fs, posixpath.join(self._root, file_names.TENSORS_DIR, folder)):
                problem = self._problem(posixpath.join(self._root, file_names.TENSORS_DIR, folder, name), name)
                if problem:
                    problems.append(Problem(problem, file=posixpath.join(file_names.TENSORS_DIR, folder, name)))
        return problems

    def _problem(self, path: str, name: str) -> str:
        if name.endswith(file_names.TEMPORARY_SUFFIX):
            return f"its step did not end {file_names.INTERRUPTED}, and its values cannot be read"
        step = file_names.tensors_step(name)
        if step is None:
            return "it is not named like tensors of a Run and was skipped"
        try:
            read_header(lambda begin, end: self._fs.cat_file(path, begin, end), self._fs.size(path))
        except (DamagedTensors, OSError) as error:
            return f"{error}; its values cannot be read"
        return "" if step[1] else "its step did not end: it holds the values up to there, and no rows refer to them"


def _version(file: os.stat_result) -> tuple[object, ...]:
    """What is another one once a step was recorded again."""
    return file.st_ino, file.st_size, file.st_mtime_ns
