"""The samples that workers consumed, as flat arrays in one order, for the checks of duplicates and coverage.

A *slot* is one place in the order of consumption (epoch, step, worker, position in the step), which holds one digest.
A *block* is a stretch that a sampler walks once: an epoch as the training DataLoader counts it, or the whole Run
where no epoch was seen; it ends where the job was started again. n slots, T steps, N workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Bools, Ints, columns_of, several_workers
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

_STEPS_LOOKED_AT = 20
"""Steps at the start by which it is known whether ranks were given whole sequences."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Slots in the order (block, step, worker, position); ``worker`` is an index into ``ranks``."""

    ranks: tuple[int, ...]
    digest: NDArray[np.uint64]
    step: Ints
    worker: Ints
    position: Ints
    block: Ints
    block_known: bool
    """Whether blocks are epochs; otherwise there is one block a start of the job, of unknown content."""
    cut: frozenset[int] = frozenset()
    """Blocks after which the job was started again: they may lack their end, and the next one its beginning, or begin
    with what they held."""

    def __len__(self) -> int:
        return len(self.digest)

    @cached_property
    def block_start(self) -> Ints:
        """[n] index of the first slot of each slot's block."""
        return stretch_bounds(self.block)[0]

    @cached_property
    def block_end(self) -> Ints:
        """[n] one past the last slot of each slot's block."""
        return stretch_bounds(self.block)[1]

    @cached_property
    def step_start(self) -> Ints:
        """[n] index of the first slot of each slot's step within its block."""
        return stretch_bounds(self.block, self.step)[0]

    @cached_property
    def step_end(self) -> Ints:
        """[n] one past the last slot of each slot's step within its block."""
        return stretch_bounds(self.block, self.step)[1]

    @cached_property
    def in_first_step(self) -> Bools:
        """[n] whether the slot is in the first step of its block, which is where samplers take their padding from."""
        return self.step_start == self.block_start

    @cached_property
    def in_last_step(self) -> Bools:
        """[n] whether the slot is in the last step of its block, which is where samplers put their padding."""
        return self.step_end == self.block_end

    @cached_property
    def first(self) -> Ints:
        """[n] index of the first slot of the block that holds the same digest."""
        return first_within(self.block, self.first_in_run) if np.any(self.block) else self.first_in_run

    @cached_property
    def first_in_step(self) -> Ints:
        """[n] index of the first slot of the step that holds the same digest."""
        return first_within(self.step_start, self.first_in_run)

    @cached_property
    def first_in_place(self) -> Ints:
        """[n] index of the first slot of the step that holds the same digest at the same position."""
        return first_within(self.step_start * (int(self.position.max()) + 1) + self.position, self.first_in_run)

    @cached_property
    def first_in_run(self) -> Ints:
        """[n] index of the first slot of all that holds the same digest."""
        return _first_of(self.digest)

    @cached_property
    def unused(self) -> Bools:
        """[n] whether no block before the slot's own holds its digest twice.

        A pair of equal rows may be met in every epoch on the same two workers, if shards are fixed: it counts once.
        """
        return not_repeated_before(self.block, self.first, self.digest)

    @cached_property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return int(self.block[-1]) + 1 if len(self) else 0

    def slots_of(self, block: int) -> slice:
        """The slots of one block."""
        low, high = np.searchsorted(self.block, [block, block + 1])
        return slice(int(low), int(high))


@memoized
def consumed_samples(run: Run) -> Samples:
    """The samples of all data-parallel workers; raises ``CannotTell`` where fewer than two left any."""
    ranks = several_workers(run)
    steps_R, ranks_R, lengths_R, digests = run.flat("sample_digests", ranks=ranks)
    begins_R, some_R = np.cumsum(lengths_R) - lengths_R, lengths_R > 0
    steps_R, ranks_R, lengths_R, begins_R = (of_R[some_R] for of_R in (steps_R, ranks_R, lengths_R, begins_R))
    left = len(np.unique(ranks_R))
    if left < 2:
        raise CannotTell(f"sample digests of two workers are needed, and {left} left some")
    workers_R = np.searchsorted(ranks, ranks_R)
    block_TN, known = _blocks(run, ranks)
    blocks_R = block_TN[np.searchsorted(run.steps, steps_R), workers_R]
    starts_R = np.searchsorted(run.restarts, steps_R, side="right")
    order_R = np.lexsort((workers_R, steps_R, blocks_R))
    lengths_R = lengths_R[order_R].astype(np.int64)
    offsets_R = np.cumsum(lengths_R) - lengths_R
    position = np.arange(int(lengths_R.sum())) - np.repeat(offsets_R, lengths_R)
    _, first, block = np.unique(blocks_R[order_R], return_index=True, return_inverse=True)
    start_of_block = starts_R[order_R][first]
    samples = Samples(
        ranks=tuple(ranks),
        digest=digests[np.repeat(begins_R[order_R], lengths_R) + position],
        step=np.repeat(steps_R[order_R], lengths_R),
        worker=np.repeat(workers_R[order_R], lengths_R),
        position=position,
        block=np.repeat(block.astype(np.int64), lengths_R),
        block_known=known,
        cut=frozenset(np.flatnonzero(np.diff(start_of_block)).tolist()),
    )
    return _once(samples, run.manifest.pieces) if run.manifest.pieces else samples


def _once(samples: Samples, pieces: Sequence[Sequence[int]]) -> Samples:
    """``samples`` without those of all ranks but the first piece's, where ranks with other ``pieces`` of the same
    sequences were given whole ones, so that they read the same on purpose: each of them more than half of its first
    steps' samples.
    """
    is_first_N = np.isin(samples.ranks, pieces[0])
    looked = np.flatnonzero(samples.step <= samples.step[0] + _STEPS_LOOKED_AT)
    group, worker = first_equal(samples.step[looked] - samples.step[0], samples.digest[looked]), samples.worker[looked]
    shared = np.isin(group, group[is_first_N[worker]])
    all_N, shared_N = (np.bincount(worker, each, minlength=len(is_first_N)) for each in (None, shared))
    if not np.all(2 * shared_N[~is_first_N] > all_N[~is_first_N]):
        return samples
    kept = is_first_N[samples.worker]
    of = {name: getattr(samples, name)[kept] for name in ("digest", "step", "worker", "position", "block")}
    return replace(samples, **of)


def share_in_common(samples: Samples, one: int, other: int, *, first: int, last: int) -> float | None:
    """The fraction of the samples that worker ``one`` consumed from step ``first`` to ``last`` of which ``other``
    consumed an equal one in the same step; None where either left none.
    """
    within = (samples.step >= first) & (samples.step <= last)
    mine, theirs = (np.flatnonzero(within & (samples.worker == worker)) for worker in (one, other))
    if not len(mine) or not len(theirs):
        return None
    both = np.concatenate([mine, theirs])
    group = first_equal(samples.step[both], samples.digest[both])
    return float(np.isin(group[: len(mine)], group[len(mine) :]).mean())


def first_equal(block: Ints, digest: NDArray[np.uint64]) -> Ints:
    """[n] for each slot the index of the first slot of equal block and digest; blocks are numbered from 0."""
    anywhere = _first_of(digest)
    return first_within(block, anywhere) if np.any(block) else anywhere


def first_within(block: Ints, anywhere: Ints) -> Ints:
    """[n] the same, where ``anywhere`` is the first slot of equal digest in any block."""
    first = np.arange(len(anywhere))
    several = repeated_slots(anywhere)
    first[several] = several[_first_of(block[several] * len(block) + anywhere[several])]
    return first


def repeated_slots(anywhere: Ints) -> Ints:
    """The slots, ascending, whose digest another slot holds too: few, as a rule, so that sorting them costs little."""
    again = np.flatnonzero(anywhere != np.arange(len(anywhere)))
    several = np.zeros(len(anywhere), dtype=bool)
    several[again] = several[anywhere[again]] = True
    return np.flatnonzero(several)


def _first_of(key: NDArray[Any]) -> Ints:
    """[n] for each slot the index of the first slot of equal key."""
    first = np.arange(len(key))
    several = _not_unique(key)
    order = several[np.argsort(key[several])]  # need not be stable, and is several times as fast as one that is
    if len(order):
        opens = np.ones(len(order), dtype=bool)
        opens[1:] = key[order][1:] != key[order][:-1]
        first[order] = np.minimum.reduceat(order, np.flatnonzero(opens))[np.cumsum(opens) - 1]
    return first


def _not_unique(key: NDArray[Any]) -> Ints:
    """The slots whose key is not the only one; all of them where that is most. Sorting values takes a fraction of the
    time that sorting slots by them does.
    """
    ordered = np.sort(key)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if 8 * len(twice) > len(key):
        return np.arange(len(key))
    if not len(twice):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(twice[np.minimum(np.searchsorted(twice, key), len(twice) - 1)] == key)


def not_repeated_before(
    stretch: Ints, first: Ints, digest: NDArray[np.uint64], slots: Ints | slice = slice(None)
) -> Bools:
    """[slots] whether no stretch before the slot's own holds its digest twice; ``first`` is ``first_equal`` of the
    two.
    """
    repeated = np.flatnonzero(first != np.arange(len(first)))
    digests, where = np.unique(digest[repeated], return_index=True)
    digest, own = digest[slots], stretch[slots]
    if not len(digests):
        return np.ones(len(digest), dtype=bool)
    place = np.minimum(np.searchsorted(digests, digest), len(digests) - 1)
    return (digests[place] != digest) | (own <= stretch[repeated][where][place])


def stretch_bounds(*keys: Ints) -> tuple[Ints, Ints]:
    """[n] for each element where its stretch of equal keys starts, and one past where it ends."""
    num = len(keys[0])
    opens = np.ones(num, dtype=bool)
    if num:
        opens[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.flatnonzero(opens)
    number = np.cumsum(opens) - 1
    return starts[number], np.append(starts[1:], num)[number]


class Tally:
    """Counts slots per worker in a range of slots."""

    def __init__(self, worker: Ints, slot: Ints) -> None:
        self._slots = np.sort(slot)
        order = np.lexsort((slot, worker))
        self._width = int(slot.max()) + 2 if len(slot) else 1
        self._keys = worker[order] * self._width + slot[order]

    def between(self, low_M: Ints, high_M: Ints, worker_M: Ints | None) -> Ints:
        """[M] slots s with low <= s < high, of one worker each or (None) of all."""
        if worker_M is None:
            return np.searchsorted(self._slots, high_M) - np.searchsorted(self._slots, low_M)
        base_M = worker_M * self._width
        capped_low, capped_high = np.minimum(low_M, self._width - 1), np.minimum(high_M, self._width - 1)
        return np.searchsorted(self._keys, base_M + capped_high) - np.searchsorted(self._keys, base_M + capped_low)


def _blocks(run: Run, ranks: list[int]) -> tuple[Ints, bool]:
    """Ascending block keys [T, N], and whether they are epochs. An epoch number that falls starts anew, and so does
    every start of the job.
    """
    epoch_TN, measured_TN = run.pivot("epoch")
    chosen = columns_of(run, ranks)
    epoch_TN, measured_TN = epoch_TN[:, chosen], measured_TN[:, chosen]
    start_T = np.searchsorted(run.restarts, run.steps, side="right")
    if not measured_TN.any():
        return np.repeat(start_T[:, None], len(ranks), axis=1), False
    of_step_T1 = np.max(np.where(measured_TN, epoch_TN, -1.0), axis=1, keepdims=True)
    filled_TN = np.where(measured_TN, epoch_TN, of_step_T1)
    seen_TN = np.where(filled_TN >= 0, np.arange(len(filled_TN))[:, None], 0)
    last_TN = np.maximum.accumulate(seen_TN, axis=0)
    held_TN = np.take_along_axis(filled_TN, last_TN, axis=0).astype(np.int64)
    falls_TN = np.diff(held_TN, axis=0, prepend=held_TN[:1]) < 0
    falls_TN[1:] |= (np.diff(start_T) > 0)[:, None]
    restarts_TN = np.cumsum(falls_TN, axis=0)
    return restarts_TN * (int(held_TN.max()) + 2) + held_TN + 1, True
