"""From which step on the workers' steps of one number are not one iteration.

T steps, N workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueline.analyze.evidence import Bools, Floats, data_parallel_ranks, differs, numbers, odd_ranks
from trueline.store.reader import Run


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


def parting_of(run: Run) -> Parting | None:
    """Where workers part, or None."""
    ranks = data_parallel_ranks(run)
    passes_TN, measured_TN = numbers(run, "passes", ranks)
    apart_T = differs(passes_TN, measured_TN) if len(ranks) > 1 and len(passes_TN) else np.zeros(0, dtype=np.bool_)
    if not apart_T.any():
        return None
    t = int(np.argmax(apart_T))
    took_TN = _took(run, passes_TN, measured_TN)
    there = np.flatnonzero(measured_TN[t])
    took = {ranks[n]: float(took_TN[t, n]) for n in there.tolist()}
    odd = odd_ranks(took)
    usual = _usual(took_TN)
    if len(odd) == len(took):
        odd = tuple(rank for rank in odd if took[rank] != usual) or odd
    rest = [took[rank] for rank in took if rank not in odd]
    left_out = bool(np.mean([took[rank] for rank in odd]) > (rest[0] if rest else usual))
    return Parting(int(run.steps[t]), odd, left_out, {ranks[n]: int(passes_TN[t, n]) for n in there.tolist()})


def _took(run: Run, passes_TN: Floats, measured_TN: Bools) -> Floats:
    """[T, N] how many passes each worker's update took; counts begin anew where the job was started again."""
    before_TN = np.vstack([np.zeros((1, passes_TN.shape[1])), np.where(measured_TN, passes_TN, np.nan)[:-1]])
    before_TN[np.isin(run.steps, run.restarts)] = 0
    return passes_TN - before_TN


def _usual(took_TN: Floats) -> float:
    """What an update takes most often."""
    values, counts = np.unique(took_TN[np.isfinite(took_TN)], return_counts=True)
    return float(values[np.argmax(counts)]) if len(values) else float("nan")
