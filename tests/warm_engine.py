"""An engine of trials for tests: starts the warm ``python`` without a process for its client, and can remember runs.

A run gets the environment, the folder and the file for what it prints that the engine ``local`` gives it. Where jobs
repeat themselves bit for bit, what one left stands for all that are started alike: a trial of forty runs takes three.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.warm_python import Program

from trueline.capture.child_env import environment
from trueline.trials.frame.engines.engine import Started
from trueline.trials.frame.engines.local import Local

_start_process = Local.start


@dataclass(frozen=True)
class _Kept:
    """What a run left in its folder, and its exit status."""

    folder: Path
    status: int


@dataclass(frozen=True)
class _Remembered:
    """A run that was not needed: one alike has ended with ``status``."""

    status: int

    def wait(self, timeout_s: float) -> int | None:
        """The status."""
        return self.status

    def end(self) -> None:
        """Nothing: nothing was started."""


@dataclass(frozen=True)
class _Ranks:
    """Ranks of one run, whose status is that of rank 0."""

    programs: Sequence[Program]

    def wait(self, timeout_s: float) -> int | None:
        until = time.monotonic() + timeout_s
        statuses = [program.wait(max(0.0, until - time.monotonic())) for program in self.programs]
        return None if None in statuses else statuses[0]

    def end(self) -> None:
        for program in self.programs:
            program.end()


@dataclass(frozen=True)
class _Keeping:
    """A run that is kept once it has ended by itself."""

    started: Started
    engine: WarmEngine
    key: str
    folder: Path

    def wait(self, timeout_s: float) -> int | None:
        if (status := self.started.wait(timeout_s)) is not None:
            self.engine.keep(self.key, self.folder, status)
        return status

    def end(self) -> None:
        self.started.end()


@dataclass
class WarmEngine:
    """Starts words that begin with ``python``, the warm one, as forks of it, and others as processes.

    ``remembers``: runs alike are run once; ``as_processes``: each that is run is started by the engine ``local``.
    ``world_size``: each run is so many ranks, which meet at the file STORE. ``folder`` is for what is kept.
    """

    python: str
    folder: Path
    remembers: bool = False
    as_processes: bool = False
    world_size: int = 1
    _kept: dict[str, _Kept] = field(default_factory=dict)

    def start(self, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path) -> Started:
        """As an ``Engine``."""
        if words[0] != self.python:
            return _start_process(Local(), words, environ, printed=printed, folder=folder)
        run_folder = printed.absolute().parent
        return self._start(words, environ, printed=printed, folder=folder, leaves=run_folder)

    def record(self, out: str, job: Path, *words: str, plan: Mapping[str, Any] | None = None, **environ: str) -> Path:
        """The Run ``out`` of a job that is watched here, as by `trueline run`."""
        path = Path(out).absolute()
        path.mkdir(parents=True)
        told = environment(out=str(path), plan=dict(plan or {}), overwrite=True, base={**os.environ, **environ})
        printed = path.with_name(f"{path.name}.printed")
        words = (self.python, str(job), *words)
        started = self._start(words, told, printed=printed, folder=Path.cwd(), leaves=path)
        assert started.wait(120.0) == 0, printed.read_text()
        started.end()
        printed.unlink(missing_ok=True)
        return path

    def keep(self, key: str, folder: Path, status: int) -> None:
        """Keep what a run left in ``folder``."""
        if key not in self._kept:
            kept = self.folder / str(len(self._kept))
            self._kept[key] = _Kept(shutil.copytree(folder, kept), status)

    def _start(
        self, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path, leaves: Path
    ) -> Started:
        key = self._key(words, environ, folder, leaves) if self.remembers else ""
        if kept := self._kept.get(key):
            shutil.copytree(kept.folder, leaves, dirs_exist_ok=True)
            return _Remembered(kept.status)
        if self.as_processes:
            started: Started = _start_process(Local(), words, environ, printed=printed, folder=folder)
        else:
            told = [dict(environ)]
            if self.world_size > 1:
                meets = {"STORE": f"{leaves}.store", "WORLD_SIZE": str(self.world_size)}
                told = [{**environ, **meets, "RANK": str(rank)} for rank in range(self.world_size)]
            started = _Ranks([Program(self.python, words[1:], one, printed=printed, folder=folder) for one in told])
        return _Keeping(started, self, key, leaves) if self.remembers else started

    def _key(self, words: Sequence[str], environ: Mapping[str, str], folder: Path, leaves: Path) -> str:
        """What decides what a run leaves: files of the command by what is in them; where it leaves it does not."""
        files = [folder / word for word in words[1:]]
        texts = [path.read_text() if path.is_file() else "" for path in files]
        of_run = {name: value for name, value in sorted(environ.items()) if name != "PYTEST_CURRENT_TEST"}
        said = json.dumps([self.world_size, self.as_processes, list(words), texts, of_run])
        for path, name in ((leaves, "RUN"), (leaves.parent, "TRIAL")):
            said = said.replace(str(path.absolute()), name)
        return hashlib.blake2b(said.encode()).hexdigest()
