"""Choose the steps at which probes look at sampled elements, and keep samples until their values are on the host."""

from __future__ import annotations

from typing import Generic, TypeVar

from trueline.capture.probes.base import Step

EARLY, LEAST_GAP, RAREST = 16, 20, 100
"""Samples are taken in each of the first steps, as most faults of optimizers show at once, and then at gaps of a
fiftieth of the steps gone by, at least and at most so many: a Run of a million steps has 11,000 samples of some
kilobytes."""

MAX_WAITING = 64
"""Samples whose values are on their way to the host; older ones are given up."""

AGAIN, DOUBTS = 3, 8
"""Samples in a row after one that is in doubt, and how often in a job: rounding that loses updates is no new doubt."""

Sample = TypeVar("Sample")


class NowAndThen:
    """Says of each step, once, whether a probe takes a sample there: after the first steps at gaps of ``gap``, and of
    ``least`` or more.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._next_step = 0
        self._doubts_left, self._again = DOUBTS, 0

    def due(self, step: Step) -> bool:
        """In the first steps, then now and then; asked only of steps at which a sample can be taken."""
        due = step.watched and (step.age < EARLY or step.number >= self._next_step or self._again > 0)
        self._again -= due and self._again > 0
        if due:
            self._next_step = step.number + max(self._least, gap(step.age))
        return due

    def look_again(self) -> None:
        """Take the next ``AGAIN`` samples as soon as they can be: what was seen is in doubt."""
        if self._doubts_left > 0:
            self._doubts_left -= 1
            self._again = AGAIN


class Waiting(Generic[Sample]):
    """The samples, by step, whose values are not yet on the host."""

    def __init__(self) -> None:
        self._by_step: dict[int, Sample] = {}

    def add(self, step: int, sample: Sample) -> None:
        """Keep the sample of a step, and give up the oldest of too many."""
        self._by_step[step] = sample
        if len(self._by_step) > MAX_WAITING:
            del self._by_step[min(self._by_step)]

    def take(self, step: int) -> Sample | None:
        """The sample of a step, which is kept no longer; None without one."""
        return self._by_step.pop(step, None)


def gap(age: int) -> int:
    """Steps until the next sample, ``age`` steps after the first."""
    return max(LEAST_GAP, min(age // 50, RAREST))
