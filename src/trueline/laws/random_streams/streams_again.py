"""Streams of torch's random numbers that begin again: one state, drawn from at several steps.

Letters: T steps, S of them at which states were seen, N ranks, K = 4: of host and device, first as the step began, then
after somebody seeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.store.reader import Run

MIN_TIMES = 3
"""Steps that must draw from one state: two passes of one update, as of SAM, may on purpose."""

NAMES = ("torch on the host", "torch on the device")


def streams_again(run: Run) -> dict[str, dict[int, list[int]]] | None:
    """Steps that draw from one state, by stream that begins again and by rank; None where no rank left the states that
    it drew from.
    """
    ranks = data_parallel_ranks(run)
    if not run.measured("rng_drawn").any():
        return None
    drawn_TNK, _ = run.stack("rng_drawn", ranks=ranks)
    steps_by_stream: dict[str, dict[int, list[int]]] = {}
    for column, name in enumerate(NAMES):
        steps_by_rank = {rank: _repeated_steps(run, drawn_TNK[:, n, column::2]) for n, rank in enumerate(ranks)}
        steps_by_stream[name] = {rank: steps for rank, steps in steps_by_rank.items() if steps}
    return {name: steps_by_rank for name, steps_by_rank in steps_by_stream.items() if steps_by_rank}


def states_drawn(run: Run, ranks: Sequence[int]) -> NDArray[np.uint64]:
    """[S, N, K] states that were drawn from, 0 where none was."""
    if not run.measured("rng_drawn").any():
        return np.zeros((0, len(ranks), 2 * len(NAMES)), dtype=np.uint64)
    drawn_TNK, _ = run.stack("rng_drawn", ranks=ranks)
    return drawn_TNK[drawn_TNK.any(axis=(1, 2))].astype(np.uint64)


def may_begin_again(drawn_SNK: NDArray[np.uint64]) -> bool:
    """True where a rank drew ``MIN_TIMES`` times from one state of one generator, at any steps."""
    for n, column in product(range(drawn_SNK.shape[1]), range(len(NAMES))):
        drawn = drawn_SNK[:, n, column :: len(NAMES)]
        counts = np.unique(drawn[drawn > 0], return_counts=True)[1]
        if counts.size and counts.max() >= MIN_TIMES:
            return True
    return False


def _repeated_steps(run: Run, drawn_T2: NDArray[np.uint64]) -> list[int]:
    """The steps of one start of the job in which a rank drew most often from one state, if often enough; of several
    such states those of the first.
    """
    longest: list[int] = []
    # A start that repeats steps after a crash draws from their states again, and is right to.
    for begin, end in pairwise([0, *np.searchsorted(run.steps, run.restarts).tolist(), len(run.steps)]):
        for drawn_T in drawn_T2[begin:end].T:
            rows = np.flatnonzero(drawn_T)
            _, first, counts = np.unique(drawn_T[rows], return_index=True, return_counts=True)
            if len(counts) and counts.max() >= max(MIN_TIMES, len(longest) + 1):
                state = drawn_T[rows[first[counts == counts.max()].min()]]
                longest = run.steps[begin:end][drawn_T == state].tolist()
    return longest
