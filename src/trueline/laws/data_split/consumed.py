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
from trueline.judge.series.whole_parameters import compute_pieces
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

_NUM_FIRST_STEPS = 20
"""Steps at the start by which it is known whether ranks were given whole sequences."""

_ARRAYS = ("digest", "step", "worker", "position", "block")


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
    """True where blocks are epochs; otherwise there is one block a start of the job, of unknown content."""
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
        """[n] slots in the first step of their block, which is where samplers take their padding from."""
        return self.step_start == self.block_start

    @cached_property
    def in_last_step(self) -> Bools:
        """[n] slots in the last step of their block, which is where samplers put their padding."""
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
        """[n] slots whose digest no block before their own holds twice.

        A pair of equal rows may be met in every epoch on the same two workers, if shards are fixed: it counts once.
        """
        return not_repeated_in_earlier(self.block, self.first, self.digest)

    @cached_property
    def num_blocks(self) -> int:
        """Number of blocks."""
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
    begins_R, filled_R = np.cumsum(lengths_R) - lengths_R, lengths_R > 0
    steps_R, ranks_R, lengths_R, begins_R = (of_R[filled_R] for of_R in (steps_R, ranks_R, lengths_R, begins_R))
    num_workers = len(np.unique(ranks_R))
    if num_workers < 2:
        raise CannotTell(f"sample digests of two workers are needed, and {num_workers} left some")
    workers_R = np.searchsorted(ranks, ranks_R)
    block_TN, blocks_known = _blocks(run, ranks)
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
        block_known=blocks_known,
        cut=frozenset(np.flatnonzero(np.diff(start_of_block)).tolist()),
    )
    if compute_pieces(run, ranks):
        samples = _keep_first_of_equals(samples)
    return _keep_first_piece(samples, run.manifest.pieces) if run.manifest.pieces else samples


def _keep_first_piece(samples: Samples, pieces: Sequence[Sequence[int]]) -> Samples:
    """``samples`` without those of all ranks but the first piece's, where ranks with other ``pieces`` of the same
    sequences were given whole ones, so that they read the same on purpose: each of them more than half of its first
    steps' samples.
    """
    is_first_N = np.isin(samples.ranks, pieces[0])
    if not _same_samples(samples, *np.flatnonzero(is_first_N).tolist()):
        return samples
    return _of_workers(samples, is_first_N)


def _keep_first_of_equals(samples: Samples) -> Samples:
    """``samples`` of one rank of each set that reads the same ones, where all sets are of one size, as those of ranks
    that compute the pieces of one batch; raises ``CannotTell`` where that leaves one rank.
    """
    firsts: list[int] = []
    set_N = np.zeros(len(samples.ranks), dtype=np.int64)
    for worker in range(len(samples.ranks)):
        equal = [first for first in firsts if _same_samples(_of_workers(samples, _are(samples, first, worker)), first)]
        set_N[worker] = equal[0] if equal else worker
        firsts += [] if equal else [worker]
    sizes = np.bincount(set_N)[firsts]
    if sizes[0] == 1 or np.any(sizes != sizes[0]):
        return samples
    if len(firsts) == 1:
        raise CannotTell(
            "these ranks exchange tensors within the forward pass, each with parameters of its own, and read the same "
            "samples: they compute the pieces of one batch together",
            reason="by-design",
        )
    return _of_workers(samples, _are(samples, *firsts))


def _are(samples: Samples, *workers: int) -> Bools:
    """[N] mask of these workers."""
    return np.isin(np.arange(len(samples.ranks)), workers)


def _of_workers(samples: Samples, chosen_N: Bools) -> Samples:
    """The slots of the workers of this mask [N]."""
    chosen = chosen_N[samples.worker]
    arrays = {name: getattr(samples, name)[chosen] for name in _ARRAYS}
    return replace(samples, **arrays)


def _same_samples(samples: Samples, *first: int) -> bool:
    """True if all workers but ``first`` read, in more than half of the samples of their first steps, what these read in
    the same step.
    """
    is_first_N = _are(samples, *first)
    slots = np.flatnonzero(samples.step <= samples.step[0] + _NUM_FIRST_STEPS)
    group = first_equal(samples.step[slots] - samples.step[0], samples.digest[slots])
    worker = samples.worker[slots]
    shared = np.isin(group, group[is_first_N[worker]])
    all_N, shared_N = (np.bincount(worker, weights, minlength=len(is_first_N)) for weights in (None, shared))
    further_N = ~is_first_N & (all_N > 0)
    return bool(np.all(2 * shared_N[further_N] > all_N[further_N]))


def common_share(samples: Samples, worker_a: int, worker_b: int, *, first: int, last: int) -> float | None:
    """Fraction of the samples that ``worker_a`` consumed from step ``first`` to ``last`` of which ``worker_b`` consumed
    an equal one in the same step; None where either left none.
    """
    in_steps = (samples.step >= first) & (samples.step <= last)
    slots_a, slots_b = (np.flatnonzero(in_steps & (samples.worker == worker)) for worker in (worker_a, worker_b))
    if not len(slots_a) or not len(slots_b):
        return None
    slots = np.concatenate([slots_a, slots_b])
    group = first_equal(samples.step[slots], samples.digest[slots])
    return float(np.isin(group[: len(slots_a)], group[len(slots_a) :]).mean())


def first_equal(block: Ints, digest: NDArray[np.uint64]) -> Ints:
    """[n] for each slot the index of the first slot of equal block and digest; blocks are numbered from 0."""
    anywhere = _first_of(digest)
    return first_within(block, anywhere) if np.any(block) else anywhere


def first_within(block: Ints, anywhere: Ints) -> Ints:
    """[n] for each slot the index of the first slot of equal block and digest; ``anywhere`` is that of any block."""
    first = np.arange(len(anywhere))
    repeated = repeated_slots(anywhere)
    first[repeated] = repeated[_first_of(block[repeated] * len(block) + anywhere[repeated])]
    return first


def repeated_slots(anywhere: Ints) -> Ints:
    """The slots, ascending, whose digest another slot holds too: few, as a rule, so that sorting them costs little."""
    later = np.flatnonzero(anywhere != np.arange(len(anywhere)))
    is_repeated = np.zeros(len(anywhere), dtype=bool)
    is_repeated[later] = is_repeated[anywhere[later]] = True
    return np.flatnonzero(is_repeated)


def _first_of(key: NDArray[Any]) -> Ints:
    """[n] for each slot the index of the first slot of equal key."""
    first = np.arange(len(key))
    repeated = _repeated_keys(key)
    order = repeated[np.argsort(key[repeated])]  # need not be stable, and is several times as fast as one that is
    if len(order):
        opens = np.ones(len(order), dtype=bool)
        opens[1:] = key[order][1:] != key[order][:-1]
        first[order] = np.minimum.reduceat(order, np.flatnonzero(opens))[np.cumsum(opens) - 1]
    return first


def _repeated_keys(key: NDArray[Any]) -> Ints:
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


def not_repeated_in_earlier(
    stretch: Ints, first: Ints, digest: NDArray[np.uint64], slots: Ints | slice = slice(None)
) -> Bools:
    """[slots] True where no stretch before the slot's own holds its digest twice; ``first`` is ``first_equal`` of the
    two.
    """
    repeated = np.flatnonzero(first != np.arange(len(first)))
    digests, where = np.unique(digest[repeated], return_index=True)
    digest, own_stretch = digest[slots], stretch[slots]
    if not len(digests):
        return np.ones(len(digest), dtype=bool)
    position = np.minimum(np.searchsorted(digests, digest), len(digests) - 1)
    return (digests[position] != digest) | (own_stretch <= stretch[repeated][where][position])


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

    def count_between(self, low_M: Ints, high_M: Ints, worker_M: Ints | None) -> Ints:
        """[M] slots s with low <= s < high, of one worker each or (None) of all."""
        if worker_M is None:
            return np.searchsorted(self._slots, high_M) - np.searchsorted(self._slots, low_M)
        base_M = worker_M * self._width
        capped_low, capped_high = np.minimum(low_M, self._width - 1), np.minimum(high_M, self._width - 1)
        return np.searchsorted(self._keys, base_M + capped_high) - np.searchsorted(self._keys, base_M + capped_low)


def _blocks(run: Run, ranks: list[int]) -> tuple[Ints, bool]:
    """Ascending block keys [T, N], and True where they are epochs. An epoch number that falls starts anew, and so does
    every start of the job.
    """
    epoch_TN, measured_TN = run.pivot("epoch")
    columns = columns_of(run, ranks)
    epoch_TN, measured_TN = epoch_TN[:, columns], measured_TN[:, columns]
    start_T = np.searchsorted(run.restarts, run.steps, side="right")
    if not measured_TN.any():
        return np.repeat(start_T[:, None], len(ranks), axis=1), False
    of_step_T1 = np.max(np.where(measured_TN, epoch_TN, -1.0), axis=1, keepdims=True)
    filled_TN = np.where(measured_TN, epoch_TN, of_step_T1)  # a rank without a row is where the others are
    row_TN = np.where(filled_TN >= 0, np.arange(len(filled_TN))[:, None], 0)
    # a step without any epoch belongs to the one before
    last_row_TN = np.maximum.accumulate(row_TN, axis=0)
    block_TN = np.take_along_axis(filled_TN, last_row_TN, axis=0).astype(np.int64)
    falls_TN = np.diff(block_TN, axis=0, prepend=block_TN[:1]) < 0
    falls_TN[1:] |= (np.diff(start_T) > 0)[:, None]
    restarts_TN = np.cumsum(falls_TN, axis=0)
    return restarts_TN * (int(block_TN.max()) + 2) + block_TN + 1, True
