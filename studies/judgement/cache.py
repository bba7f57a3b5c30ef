"""Trainings kept on disk by what they are, and what was said of them by the code that said it.

Judging can so be repeated without training again, and goes on where it was broken off.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.judgement.faults import Fault
from studies.judgement.workers import NOTHING, Recorded, train
from studies.judgement.workloads import Workload

import trueline.judge

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
        return folder / f"{self.key}.npz"

    @property
    def key(self) -> str:
        """Sixteen characters that stand for this training."""
        words = f"{self.workload.name}|{self.fault.name}|{self.workers}|{self.seed}|{self.steps}|{self.start}"
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def recorded(self, folder: Path) -> Recorded:
        """What the workers recorded, trained now unless it is kept under ``folder``."""
        path = self.path(folder)
        if path.exists():
            return Recorded.load(path)
        found = train(
            self.workload, workers=self.workers, seed=self.seed, steps=self.steps, fault=self.fault, start=self.start
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


def said(job: Job, folder: Path, what: str, say: Callable[[], Any]) -> Any:
    """What ``say`` returns (anything that JSON holds), or returned before of this training with the same code."""
    path = folder / "said" / _code() / f"{what}-{job.key}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(say()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def _code() -> str:
    """Sixteen characters that stand for the analysis and for how this benchmark asks it."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    analysis = sorted(Path(trueline.judge.__path__[0]).rglob("*.py"))
    for path in [*analysis, here / "judging.py", here / "power.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
