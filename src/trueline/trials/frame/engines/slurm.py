"""Runs as batch jobs of SLURM: ``sbatch`` starts one, ``scancel`` ends it.

The job leaves the files ``began`` and ``ended`` (its exit status) beside what it prints, on a disk that all nodes
share, as a Run needs one anyway; so no accounting is needed, and what it waits in the queue does not count. Where the
job is gone without ``ended``, SLURM ended it (a limit of time or memory, a node that failed): the status is that of
sbatch.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueline.schema.errors import InputError

POLL_S = 0.5
GRACE_S = 60.0
"""How long SLURM has to end a job, and a shared disk to show what it left, in seconds."""


@dataclass(frozen=True)
class Slurm:
    """Starts the command by sbatch with these ``options`` (``-p gpu -N 2``)."""

    options: Sequence[str] = ()

    @classmethod
    def from_options(cls, options: Sequence[str]) -> Slurm:
        """Raises ``InputError`` where SLURM is not here."""
        if missing := [name for name in ("sbatch", "scancel") if shutil.which(name) is None]:
            raise InputError(
                f"--engine is slurm, and there is no {missing[0]} on PATH. Start the trial on a machine that submits "
                "jobs to SLURM."
            )
        return cls(tuple(options))

    def start(self, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path) -> BatchJob:
        run_folder = printed.absolute().parent
        script, began, ended = run_folder / "job.sh", run_folder / "began", run_folder / "ended"
        script.write_text(
            f"#!/bin/sh\n: > {shlex.quote(str(began))}\ncd {shlex.quote(str(folder))} || exit 1\n"
            f"{shlex.join(words)} < /dev/null\nstatus=$?\n"
            # renamed once it is whole: a reader on another node sees no empty file
            f"cd {shlex.quote(str(run_folder))} && echo $status > ended.part && mv ended.part ended\nexit $status\n"
        )
        output = f"--output={str(printed.absolute()).replace('%', '%%')}"
        waiting = subprocess.Popen(
            ["sbatch", "--parsable", "--wait", "--job-name=trueline-trial", output, *self.options, str(script)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert waiting.stdout is not None
        number = waiting.stdout.readline().partition(";")[0].strip()
        if not number:
            complaint = " ".join(waiting.communicate()[1].split()) or "nothing"
            raise InputError(
                f"sbatch did not take the job: {complaint}. Its options stand in --engine 'slurm:OPTIONS'."
            )
        return BatchJob(number, waiting, began, ended)


@dataclass(frozen=True)
class BatchJob:
    """Job ``number`` of SLURM, for which ``waiting``, an sbatch, waits."""

    number: str
    waiting: subprocess.Popen[str]
    began: Path
    ended: Path

    def wait(self, timeout_s: float) -> int | None:
        began_at: float | None = None
        while not self.ended.exists():
            if self.waiting.poll() is not None:  # and a shared disk may show it late
                return self._status() if self._is_shown() else self.waiting.returncode or 1
            if began_at is None and self.began.exists():
                began_at = time.monotonic()
            if began_at is not None and time.monotonic() - began_at > timeout_s:
                return None
            time.sleep(POLL_S)
        return self._status()

    def end(self) -> None:
        """Cancel it, and wait until SLURM has ended it."""
        if self.waiting.poll() is None and not self.ended.exists():
            subprocess.run(["scancel", self.number], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.waiting.wait(GRACE_S)
        self.waiting.terminate()
        self.waiting.communicate()

    def _is_shown(self) -> bool:
        deadline = time.monotonic() + (GRACE_S if self.waiting.returncode == 0 else 0.0)
        while not self.ended.exists() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self.ended.exists()

    def _status(self) -> int:
        return int(self.ended.read_text())
