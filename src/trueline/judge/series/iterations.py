"""From which step on the workers' steps of one number are not one iteration.

T steps, N workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, data_parallel_ranks, differs, numbers, odd_ranks
from trueline.judge.series.local_updates import updates_locally
from trueline.judge.stats.memoize import memoized
from trueline.store.reader import Run

LEAST = 2
"""Workers whose counts are known at a step, for it to say that they differ or not."""


@dataclass(frozen=True)
class Parting:
    """The first ``step`` at which workers had made other numbers of reduced backward ``passes`` (by rank), and the
    ``ranks`` whose doing it is: they left out an update or (``left_out`` False) made one more. All, where that is
    undecided.
    """

    step: int
    ranks: tuple[int, ...]
    left_out: bool
    passes: dict[int, int]


AT_ONCE = 4_000_000
"""Rows of which passes are held at once to see whether workers may part."""


def may_part(run: Run) -> bool:
    """Whether workers had made other numbers of passes at any step: else they do not part."""
    ranks = data_parallel_ranks(run)
    together = max(AT_ONCE // max(len(run.ranks), 1), 1)
    return len(ranks) > 1 and any(
        _may_part(run if len(steps) == len(run.steps) else run.between(int(steps[0]), int(steps[-1]) + 1), ranks)
        for steps in (run.steps[begin : begin + together] for begin in range(0, len(run.steps), together))
    )


def _may_part(part: Run, ranks: Sequence[int]) -> bool:
    part.load(["passes"])  # and not all other numbers with it
    return bool(differs(*numbers(part, "passes", ranks)).any())


@memoized
def parting_of(run: Run) -> Parting | None:
    """Where workers part, or None."""
    ranks = data_parallel_ranks(run)
    passes_TN, measured_TN = numbers(run, "passes", ranks)
    apart_T = differs(passes_TN, measured_TN) if len(ranks) > 1 and len(passes_TN) else np.zeros(0, dtype=np.bool_)
    took_TN = _took(run, passes_TN, measured_TN)
    if apart_T.any() and run.manifest.adapter == "manual":
        apart_T = _by_hand(run, apart_T, took_TN)
    if not apart_T.any():
        return None
    t = int(np.argmax(apart_T))
    there = np.flatnonzero(measured_TN[t])
    took = {ranks[n]: float(took_TN[t, n]) for n in there.tolist()}
    odd = odd_ranks(took)
    usual = _usual(took_TN)
    if len(odd) == len(took):
        least = min(abs(each - usual) for each in took.values()) if run.manifest.adapter == "manual" else 0
        odd = tuple(rank for rank in odd if abs(took[rank] - usual) != least) or odd
    rest = [took[rank] for rank in took if rank not in odd]
    left_out = bool(np.mean([took[rank] for rank in odd]) > (rest[0] if rest else usual))
    return Parting(int(run.steps[t]), odd, left_out, {ranks[n]: int(passes_TN[t, n]) for n in there.tolist()})


def _by_hand(run: Run, apart_T: Bools, took_TN: Floats) -> Bools:
    """[T] where collectives of hand-written code show that workers have parted. They count also what some ranks send to
    each other, and one may come to a collective before its update and another behind: so the difference must come by
    more than half of what an update takes, and last; and replicas must differ from there on.
    """
    if updates_locally(run):
        return np.zeros_like(apart_T)
    lasting_T = np.logical_and.accumulate((apart_T | (np.isfinite(took_TN).sum(axis=1) < LEAST))[::-1])[::-1]
    with np.errstate(invalid="ignore"):
        jump_T = np.fmax.reduce(took_TN, axis=1) - np.fmin.reduce(took_TN, axis=1)
    found_T = np.asarray(apart_T & lasting_T & (jump_T > _usual(took_TN) / 2), dtype=np.bool_)
    return found_T if found_T.any() and _differ(run, int(run.steps[np.argmax(found_T)])) else np.zeros_like(found_T)


def _differ(run: Run, step: int) -> bool:
    """Whether replicas hold other parameters at a step from there on, or as training left them."""
    held: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
    for (at, _), digests in run.lists("param_digests").items():
        if at > step:
            held[at].add(tuple(digests))
    held[-1] = {tuple(digests) for (at, _), digests in run.lists("closing_digests").items() if at >= step - 1}
    return any(len(digests) > 1 for digests in held.values())


def _took(run: Run, passes_TN: Floats, measured_TN: Bools) -> Floats:
    """[T, N] how many passes each worker's update took; counts begin anew where the job was started again."""
    before_TN = np.vstack([np.zeros((1, passes_TN.shape[1])), np.where(measured_TN, passes_TN, np.nan)[:-1]])
    before_TN[np.isin(run.steps, run.restarts)] = 0
    return passes_TN - before_TN


def _usual(took_TN: Floats) -> float:
    """What an update takes most often."""
    values, counts = np.unique(took_TN[np.isfinite(took_TN)], return_counts=True)
    return float(values[np.argmax(counts)]) if len(values) else float("nan")
