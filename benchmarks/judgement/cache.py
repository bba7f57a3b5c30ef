"""Trainings kept on disk by what they are, so that judging can be repeated without training again."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.judgement.faults import Fault
from benchmarks.judgement.workers import NOTHING, Recorded, train
from benchmarks.judgement.workloads import Workload

DEFAULT = Path(tempfile.gettempdir()) / "trueline-judgement"


@dataclass(frozen=True)
class Job:
    """One training: a kind, its size, and what is done to it from step ``start`` on."""

    workload: Workload
    workers: int
    seed: int
    steps: int
    fault: Fault = NOTHING
    start: int = 0

    def path(self, folder: Path) -> Path:
        """The file of this training under ``folder``."""
        words = f"{self.workload.name}|{self.fault.name}|{self.workers}|{self.seed}|{self.steps}|{self.start}"
        return folder / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.npz"

    def recorded(self, folder: Path) -> Recorded:
        """What the workers recorded, trained now unless it is kept under ``folder``."""
        path = self.path(folder)
        if path.exists():
            return Recorded.load(path)
        found = train(
            self.workload,
            workers=self.workers,
            seed=self.seed,
            steps=self.steps,
            fault=self.fault,
            start=self.start,
        )
        found.save(path)
        return found


def train_all(jobs: list[Job], folder: Path) -> None:
    """Train what is not kept yet, saying how far it is once a minute."""
    missing = [job for job in jobs if not job.path(folder).exists()]
    begin = said = time.monotonic()
    for number, job in enumerate(missing):
        job.recorded(folder)
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"trained {number + 1} of {len(missing)} in {said - begin:.0f} s", file=sys.stderr, flush=True)
