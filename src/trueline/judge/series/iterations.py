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

MIN_WORKERS = 2
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


ROWS_AT_ONCE = 4_000_000
"""Rows of which passes are held at once to see whether workers may part."""


def may_part(run: Run) -> bool:
    """True if workers had made different numbers of passes at any step: else they cannot part."""
    ranks = data_parallel_ranks(run)
    num_steps = max(ROWS_AT_ONCE // max(len(run.ranks), 1), 1)
    return len(ranks) > 1 and any(
        _may_part(run if len(steps) == len(run.steps) else run.between(int(steps[0]), int(steps[-1]) + 1), ranks)
        for steps in (run.steps[begin : begin + num_steps] for begin in range(0, len(run.steps), num_steps))
    )


def _may_part(part: Run, ranks: Sequence[int]) -> bool:
    part.load(["passes"])  # this column alone: reading it on demand would read all numbers with it
    return bool(differs(*numbers(part, "passes", ranks)).any())


@memoized
def parting_of(run: Run) -> Parting | None:
    """First step at which workers part; None where they do not."""
    ranks = data_parallel_ranks(run)
    passes_TN, measured_TN = numbers(run, "passes", ranks)
    apart_T = differs(passes_TN, measured_TN) if len(ranks) > 1 and len(passes_TN) else np.zeros(0, dtype=np.bool_)
    took_TN = _took(run, passes_TN, measured_TN)
    if apart_T.any() and run.manifest.adapter == "manual":
        apart_T = _by_hand(run, apart_T, took_TN)
    if not apart_T.any():
        return None
    t = int(np.argmax(apart_T))
    measured: list[int] = np.flatnonzero(measured_TN[t]).tolist()
    took = {ranks[n]: float(took_TN[t, n]) for n in measured}
    odd = odd_ranks(took)
    usual = _usual(took_TN)
    # No majority took the same number of passes: blame those that took another number than is usual.
    if len(odd) == len(took):
        least = min(abs(passes - usual) for passes in took.values()) if run.manifest.adapter == "manual" else 0
        odd = tuple(rank for rank in odd if abs(took[rank] - usual) != least) or odd
    rest = [took[rank] for rank in took if rank not in odd]
    left_out = bool(np.mean([took[rank] for rank in odd]) > (rest[0] if rest else usual))
    return Parting(int(run.steps[t]), odd, left_out, {ranks[n]: int(passes_TN[t, n]) for n in measured})


def _by_hand(run: Run, apart_T: Bools, took_TN: Floats) -> Bools:
    """[T] where collectives of hand-written code show that workers have parted. They count also what some ranks send to
    each other, and one may come to a collective before its update and another behind: so the difference must come by
    more than half of what an update takes, and last; and replicas must differ from there on.
    """
    if updates_locally(run):
        return np.zeros_like(apart_T)
    lasting_T = np.logical_and.accumulate((apart_T | (np.isfinite(took_TN).sum(axis=1) < MIN_WORKERS))[::-1])[::-1]
    with np.errstate(invalid="ignore"):
        jump_T = np.fmax.reduce(took_TN, axis=1) - np.fmin.reduce(took_TN, axis=1)
    found_T = np.asarray(apart_T & lasting_T & (jump_T > _usual(took_TN) / 2), dtype=np.bool_)
    return found_T if found_T.any() and _differ(run, int(run.steps[np.argmax(found_T)])) else np.zeros_like(found_T)


def _differ(run: Run, step: int) -> bool:
    """True if replicas hold different parameters at a step after ``step``, or as training left them."""
    digests_by_step: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
    for (at, _), digests in run.lists("param_digests").items():
        if at > step:
            digests_by_step[at].add(tuple(digests))
    closing = run.lists("closing_digests")
    digests_by_step[-1] = {tuple(digests) for (at, _), digests in closing.items() if at >= step - 1}
    return any(len(digests) > 1 for digests in digests_by_step.values())


def _took(run: Run, passes_TN: Floats, measured_TN: Bools) -> Floats:
    """[T, N] how many passes each worker's update took; counts begin anew where the job was started again."""
    before_TN = np.vstack([np.zeros((1, passes_TN.shape[1])), np.where(measured_TN, passes_TN, np.nan)[:-1]])
    before_TN[np.isin(run.steps, run.restarts)] = 0
    return passes_TN - before_TN


def _usual(took_TN: Floats) -> float:
    """The number of passes that an update takes most often; NaN where none is known."""
    values, counts = np.unique(took_TN[np.isfinite(took_TN)], return_counts=True)
    return float(values[np.argmax(counts)]) if len(values) else float("nan")
