"""`trial vote` on devices that exist in numbers only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.simulated_jobs import NotKept

from trueline.trials.frame.runs import Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import TrialAnswer
from trueline.trials.vote.groups import VARIABLE, Groups
from trueline.trials.vote.replay import ReplayedJob
from trueline.trials.vote.vote import VoteTrial

Spoils = Callable[[str, int, random.Random], bool]
"""Whether the rank at a place of a run is spoilt on a device."""

STEPS = 4


def tried(
    spoils: Spoils, *, devices: int = 6, size: int = 2, max_runs: int = 200, seed: int = 0, **more: Any
) -> TrialAnswer:
    """`trial vote` on devices 0 to ``devices`` - 1 in groups of ``size``."""
    draw = random.Random(seed)

    def engine(way: Way, place: Path) -> Outcome:
        group = way.environ[VARIABLE].split(",")
        spoilt = [rank for rank, device in enumerate(group) if spoils(device, rank, draw)]
        return Outcome(False, codes=bits(size, spoilt, f"{draw.random():.12f}") if spoilt else bits(size))

    named = [str(number) for number in range(devices)]
    runs = NotKept("vote", Path("nowhere"), engine, {}, max_runs)
    job = ReplayedJob(None, STEPS, 0)  # type: ignore[arg-type]  # nothing is started
    return VoteTrial(runs, job, Groups(named, size, (), ("job",)), seed=seed, **more).answer()


def bits(size: int, spoilt: list[int] | tuple[int, ...] = (), value: str = "") -> tuple[str, ...]:
    """Lines of a replay: from the gradient of step 1 on another value in the ranks that are spoilt, then in all."""
    return tuple(_lines(size, spoilt, value))


def _lines(size: int, spoilt: list[int] | tuple[int, ...], value: str) -> Iterator[str]:
    for step in range(STEPS):
        for what in ("samples", "weights", "loss", "gradient"):
            apart = what != "samples" and (step > 1 or (step == 1 and what == "gradient"))
            ranks = [] if not spoilt or not apart else range(size) if step > 1 else spoilt
            yield " ".join([str(step), what, *(value if rank in ranks else "0" for rank in range(size))])
