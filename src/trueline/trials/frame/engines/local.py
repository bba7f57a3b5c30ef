"""Runs on this machine: processes of our own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 15.0
"""How long a command has to end its processes when it is stopped."""


@dataclass(frozen=True)
class Process:
    """A command in a process group of its own."""

    process: subprocess.Popen[bytes]

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End what is left of its group: first as a launcher passes on to its ranks, then for certain."""
        # torchrun passes SIGTERM on and reaps its ranks; SIGKILL would leave them
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)


class Local:
    """Starts the command as it was given."""

    def start(self, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path) -> Process:
        with printed.open("wb") as file:
            return Process(
                subprocess.Popen(
                    words,
                    env=environ,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
