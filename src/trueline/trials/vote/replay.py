"""One replay of a job's first steps, and the bits that it left of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import CannotTell, RunError
from trueline.store.reader import Run
from trueline.trials.frame.runs import Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Job
from trueline.trials.frame.watched_job import AFTER, EVERY_STEP, run_watched

_COLUMNS = {
    "samples": ("sample_digests",),
    "weights": ("param_digests", "buffer_digests"),
    "loss": ("loss", "part_losses"),
    "gradient": ("grad_norm", "param_grad_norms"),
}
"""What is seen of a step, in the order in which it is computed."""

_ON_CPU = (
    "it ran on the CPU, whichever devices it was shown: name with --variable what it reads, or put {devices} into the "
    "command"
)


@dataclass(frozen=True)
class FirstApart:
    """The point at which two replays part: step, ``kind`` of value (a key of ``_COLUMNS``), and ranks."""

    step: int
    kind: str
    ranks: tuple[int, ...]


@dataclass
class ReplayedJob:
    """Runs ``job`` with seeds for ``steps`` steps. ``codes`` of its outcome are the bits of each, and it *shows*
    something where these are not those that the replays before it ``agreed`` on. Where ``is_told`` is false its devices
    are only visible to it, so that one that does not use them tells nothing.
    """

    job: Job
    steps: int
    seed: int
    deterministic: bool = False
    is_told: bool = True
    agreed: Sequence[str] = ()

    def __call__(self, way: Way, run_folder: Any) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        run_path = (run_folder / "run").absolute()
        changes = {"updates": self.steps + AFTER, "seed": self.seed, "deterministic": self.deterministic}
        job = self.job.with_words(way.words)
        _, why = run_watched(job, run_path, plan=EVERY_STEP, changes=changes, environ=way.environ)
        if why:
            return Outcome(None, why)
        try:
            run = Run(run_path)
            bits = bits_of(run, self.steps)
        except (CannotTell, RunError) as error:
            return Outcome(None, str(error))
        # a job on the CPU is the same on every device, and would clear all of them
        if not self.is_told and all(env.device == "cpu" for env in run.env.values()):
            return Outcome(None, _ON_CPU)
        if not bits:
            return Outcome(None, f"it ended before step {self.steps - 1}: ask for fewer with --steps")
        return Outcome(bool(self.agreed) and bits != tuple(self.agreed), codes=bits)


def bits_of(run: Run, steps: int) -> tuple[str, ...]:
    """For each of the first ``steps`` steps and each kind of value a line: step, kind, and a digest for each rank; ()
    where the Run does not have all these steps.
    """
    parts = [run, *(Run(path) for path in run.groups)]
    ranks = sorted({rank for part in parts for rank in part.ranks})
    digests: dict[tuple[int, str, int], str] = {}
    recorded_steps: set[int] = set()
    for part in parts:
        at = list(zip(part.column("step").to_pylist(), part.column("rank").to_pylist(), strict=True))
        recorded_steps |= {step for step, _ in at}
        for kind, columns in _COLUMNS.items():
            values = [part.column(name).to_pylist() for name in columns]
            for (step, rank), *row in zip(at, *values, strict=True):
                digests[step, kind, rank] = hashlib.blake2b(repr(row).encode(), digest_size=6).hexdigest()
    if not {*range(steps)} <= recorded_steps:
        return ()
    return tuple(
        " ".join([str(step), kind, *(digests.get((step, kind, rank), "-") for rank in ranks)])
        for step in range(steps)
        for kind in _COLUMNS
    )


def first_apart(bits: Sequence[str], agreed: Sequence[str]) -> FirstApart | None:
    """The point at which replays part; None where they are the same, or are of other ranks or steps."""
    for line, agreed_line in zip(bits, agreed, strict=False):
        if line == agreed_line:
            continue
        step, kind, *digests = line.split()
        agreed_digests = agreed_line.split()[2:]
        if len(digests) != len(agreed_digests):
            return None
        ranks = [
            rank
            for rank, (digest, agreed_digest) in enumerate(zip(digests, agreed_digests, strict=True))
            if digest != agreed_digest
        ]
        return FirstApart(int(step), kind, tuple(ranks))
    return None
