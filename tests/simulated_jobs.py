"""Jobs that exist in numbers only: which switches a fault needs, and how often a run shows it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trueline.trials.frame.chance import Counts, decided
from trueline.trials.frame.runs import OutOfRuns, Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import TrialAnswer
from trueline.trials.knobs.catalogue import Switch
from trueline.trials.knobs.knobs import KnobTrial

Needs = Literal["one", "both", "either"]


@dataclass(frozen=True)
class SequentialTest:
    """Wald's test where r and f are given: ``log_odds`` after runs that ended so."""

    rate: float
    false_rate: float

    def log_odds(self, counts: Counts) -> float:
        """ln(r / f) for each run that showed it, ln((1 - r) / (1 - f)) for each that did not."""
        # away from 0 and 1, where one run would decide with infinite odds
        rate, false_rate = (min(max(share, 1e-9), 1 - 1e-9) for share in (self.rate, self.false_rate))
        clean = counts.runs - counts.showed
        return counts.showed * math.log(rate / false_rate) + clean * math.log((1 - rate) / (1 - false_rate))


@dataclass
class SimulatedJob:
    """A job with ``size`` switches on, of which ``causes`` are needed as ``needs`` says; a run shows the fault with
    ``rate`` where they are on, and with ``false_rate`` where not.
    """

    size: int
    causes: tuple[int, ...]
    needs: Needs
    rate: float
    false_rate: float
    seed: int
    runs: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.switches = [Switch(f"s{place}", "setting", "", prior=1.0) for place in range(self.size)]

    def shows(self, off: Sequence[int]) -> bool:
        """One run with these off."""
        self.runs += 1
        on = [place not in off for place in self.causes]
        present = any(on) if self.needs == "either" else all(on)
        return self._random.random() < (self.rate if present else self.false_rate)

    def __call__(self, way: Way, place: Path) -> Outcome:
        return Outcome(self.shows(way.changes.get("off", ())))

    @property
    def right(self) -> str:
        """The answer that is right."""
        joint = {"one": "", "both": " + ", "either": " | "}[self.needs]
        return joint.join(f"s{place}" for place in sorted(self.causes))


def bayes(job: SimulatedJob, *, error: float, max_runs: int = 3000) -> TrialAnswer:
    """`trial knobs` on it."""
    runs = NotKept("knobs", Path("nowhere"), job, {}, max_runs)
    number = {switch.name: place for place, switch in enumerate(job.switches)}

    def way(arm: str, off: Sequence[Switch]) -> Way:
        return Way(arm, changes={"off": [number[switch.name] for switch in off]})

    return KnobTrial(runs, "", lambda: job.switches, way, error=error, seed=job.seed).answer()


class NotKept(Runs):
    """Runs of which nothing is written."""

    def _new(self, way: Way, number: int) -> dict[str, Any]:
        if len(self.log) >= self.max_runs:
            raise OutOfRuns(self.max_runs)
        return {"arm": way.arm, **asdict(self.runner(way, self.folder)), "seconds": 0.0, "place": ""}

    def _write(self, answer: object) -> None:
        pass


def halving(job: SimulatedJob, *, error: float) -> tuple[str, int]:
    """What halving names, and its runs. It is told both rates, and what is needed: of two that are needed together it
    finds one, holds it on and finds the other; of two that each suffice it finds one by switching halves on, holds it
    off and finds the other. Each decision is Wald's with an equal share of the error; base, sham and all off are
    confirmed first and the answer from each side, as `trial knobs` does.
    """
    test = SequentialTest(job.rate, job.false_rate)
    num = math.ceil(math.log2(job.size)) * len(job.causes) + 3 + (2 if job.needs == "one" else 3)
    every = set(range(job.size))

    def is_there(off: set[int]) -> bool:
        counts = Counts()
        while True:
            counts = counts.with_one(job.shows(tuple(off)))
            answer = decided(test.log_odds(counts), error=error / num)
            if answer is not None:
                return answer

    def one_of(among: list[int]) -> int:
        while len(among) > 1:
            half, rest = among[: len(among) // 2], among[len(among) // 2 :]
            if job.needs == "either":
                among = half if is_there(every - set(half)) else rest
            else:
                among = rest if is_there(set(half)) else half
        return among[0]

    named = ""
    if is_there(set()) and is_there(set()) and not is_there(every):
        first = one_of(sorted(every))
        found = {first} if job.needs == "one" else {first, one_of(sorted(every - {first}))}
        sides = [(found, False)] if job.needs == "either" else [({each}, False) for each in found]
        sides += [(every - {each}, True) for each in found] if job.needs == "either" else [(every - found, True)]
        if all(is_there(off) == shows for off, shows in sides):
            named = {"one": "", "both": " + ", "either": " | "}[job.needs].join(f"s{each}" for each in sorted(found))
    return named, job.runs
