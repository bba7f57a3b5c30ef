"""Take the turns of the bare step and both tools in rotating order, and compare them round by round."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recording.parts import Part
from benchmarks.recording.turns import Left, Trainee, Turn

NAMES = ("bare", "msprobe", "trueline")
WARMUP = 1


@dataclass(frozen=True)
class Measured:
    """The turns of each tool, one a round, and what it left."""

    part: Part
    turns: dict[str, list[Turn]]
    left: dict[str, Left]

    def ratios(self, name: str, clock: str) -> list[float]:
        """Step time of ``name`` over the bare step, per round; ``clock`` is ``wall_s`` or ``cpu_s``."""
        return [
            getattr(one, clock) / getattr(bare, clock)
            for one, bare in zip(self.turns[name], self.turns["bare"], strict=True)
        ]

    def shares(self, clock: str) -> list[float]:
        """What Trueline adds to the bare step, over what msProbe adds, per round."""
        return [
            (ours - 1) / (theirs - 1)
            for ours, theirs in zip(self.ratios("trueline", clock), self.ratios("msprobe", clock), strict=True)
        ]


def measure(part: Part, *, rounds: int, steps: dict[str, int], folder: Path) -> Measured:
    """Run ``rounds`` rounds after a warm-up; ``steps`` a turn by tool. ``folder`` is made for this part."""
    settings = {"bare": {}, "msprobe": part.msprobe, "trueline": part.trueline}
    trainees = {name: Trainee(name, folder / name, settings[name], bulky=part.bulky.get(name, ())) for name in NAMES}
    for trainee in trainees.values():
        trainee.ready()
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    for round_ in range(WARMUP + rounds):
        for place in range(len(NAMES)):
            name = NAMES[(round_ + place) % len(NAMES)]
            turn = trainees[name].turn(steps[name])
            if round_ >= WARMUP:
                turns[name].append(turn)
    left = {name: trainee.finish() for name, trainee in trainees.items()}
    if part.time_share is not None and not (left["msprobe"].values_a_step and left["trueline"].values_a_step):
        sys.exit(f"One of the tools recorded no value of '{part.name}', so there is nothing to compare.")
    return Measured(part, turns, left)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high
