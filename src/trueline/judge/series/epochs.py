"""The samples that a rank read in each epoch, in order: the beginning of each, so that long Runs fit into memory.

D samples of an epoch, T steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.store.reader import Run

MOST_SAMPLES = 4096
"""Samples at the beginning of an epoch that stand for its order."""
MOST_EPOCHS = 256
"""Epochs of a rank, the first, that are looked at: with ``MOST_SAMPLES`` 8 MiB of digests."""
MOST_OF_ONE = 1 << 18
"""Samples that are looked at of an epoch that is the only one, for passes within it."""

Digests = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Epoch:
    """One pass of a rank over its data: ``number`` as the DataLoader counts it, or as passes follow each other within
    one epoch, the number of the start of the job, digests [D] of the samples that it begins with, its first step and
    how many it has.
    """

    number: int
    start: int
    digests: Digests
    first: int
    num_steps: int


def epochs_of(run: Run, rank: int) -> list[Epoch]:
    """Epochs of a rank in which samples were seen, in order, ``MOST_EPOCHS`` at most; where the DataLoader is gone
    through once, the passes within that. Empty where no DataLoader was seen.
    """
    epochs_TN, measured_TN = run.pivot("epoch")
    if rank not in run.ranks:
        return []
    column = run.ranks.index(rank)
    rows_T = np.flatnonzero(measured_TN[:, column])
    if not len(rows_T):
        return []
    epochs_T, starts_T = epochs_TN[rows_T, column].astype(np.int64), _starts(run)[rows_T]
    opens_T = np.flatnonzero(np.r_[True, (np.diff(epochs_T) != 0) | (np.diff(starts_T) != 0)])
    ends_T = np.r_[opens_T[1:], len(rows_T)]
    steps_T = run.steps[rows_T]
    most = MOST_OF_ONE if len(opens_T) == 1 else MOST_SAMPLES
    num_steps = -(-most // max(_samples_a_step(run, rank, int(steps_T[0])), 1))
    blocks = list(zip(opens_T[:MOST_EPOCHS].tolist(), ends_T[:MOST_EPOCHS].tolist(), strict=True))
    looked_at = [step for begin, end in blocks for step in steps_T[begin : min(end, begin + num_steps)].tolist()]
    steps_R, _, lengths_R, digests = run.flat("sample_digests", ranks=[rank], steps=looked_at)
    offsets_R = np.r_[0, np.cumsum(lengths_R)]
    epochs: list[Epoch] = []
    for begin, end in blocks:
        low, high = np.searchsorted(steps_R, [steps_T[begin], steps_T[end - 1] + 1])
        samples_D = digests[offsets_R[low] : offsets_R[high]][:most]
        if len(samples_D):
            number, start = int(epochs_T[begin]), int(starts_T[begin])
            epochs.append(Epoch(number, start, samples_D, int(steps_T[begin]), end - begin))
    return _passes(epochs[0]) if len(epochs) == 1 else epochs


def _starts(run: Run) -> NDArray[np.int64]:
    """[T] the number of the start of the job that made each step."""
    return np.searchsorted(run.restarts, run.steps, side="right")


def _samples_a_step(run: Run, rank: int, step: int) -> int:
    *_, digests = run.flat("sample_digests", ranks=[rank], steps=[step])
    return len(digests)


def _passes(epoch: Epoch) -> list[Epoch]:
    """The epoch, or the passes that it is made of: a sampler that never ends begins again with its first sample once it
    has read each once.
    """
    samples_D = epoch.digests
    again = np.flatnonzero(samples_D[1:] == samples_D[0])
    length = int(again[0]) + 1 if len(again) else 0
    if length < 2 or len(np.unique(samples_D[:length])) < length:
        return [epoch]
    steps = epoch.num_steps * length // len(samples_D)
    return [
        Epoch(
            number, epoch.start, samples_D[begin : begin + length][:MOST_SAMPLES], epoch.first + number * steps, steps
        )
        for number, begin in enumerate(range(0, len(samples_D), length))
    ]
