"""Samples that an epoch should have consumed and did not.

n slots, N workers. The ways to know are on the manual page of ``shard_overlap.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints
from trueline.judge.series.declared_sampling import DeclaredSampling
from trueline.judge.stats.distinct import num_distinct
from trueline.judge.stats.tails import ALARM_LEVEL, log_e_process
from trueline.laws.data_split.consumed import Samples, Tally, first_equal
from trueline.laws.data_split.repeats_in_epoch import RANK_SHARE, TOTAL_SHARE
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted

COVERAGE_SHARE = 1 - TOTAL_SHARE - RANK_SHARE
"""Share of ``ALARM_LEVEL`` that ``laws/data_split/repeats_in_epoch.py`` leaves."""


@dataclass(frozen=True)
class Gap:
    """Samples consumed, and samples expected, over all workers in the complete epoch that is block ``block``."""

    consumed: int
    expected: int
    block: int


@dataclass(frozen=True)
class Returns:
    """Samples of one epoch that came again in the next, reshuffled one: [E] each.

    ``stays`` is True where one worker had them both times, ``chance`` is the probability of that given all before, if
    all workers drew from one data set. ``fresh`` counts by block the samples that no earlier block held.
    """

    stays: Bools
    chance: Floats
    block: Ints
    fresh: dict[int, int]

    def between_workers(self, num_workers: int) -> bool:
        """True where samples evidently wander between workers: nearer to one in N staying than to all of them."""
        return bool(len(self.stays)) and float(self.stays.mean()) < (1 + 1 / num_workers) / 2


def largest_step(samples: Samples) -> int:
    """The most samples that all workers together consumed in one step of a block.

    ``drop_last`` leaves out less than one batch of every worker, and a sampler that evens out workers repeats less
    than that: together at most this.
    """
    return int((samples.step_end - samples.step_start).max())


def complete_blocks(samples: Samples, declared: DeclaredSampling) -> list[int]:
    """Epochs that were watched from start to end.

    A later epoch exists, and so does an earlier one, of the same start of the job; the first epoch may have been
    resumed in its middle, and counts only if every worker consumed as many samples as its sampler is long.
    """
    if not samples.block_known:
        return []
    broken = samples.cut | {block + 1 for block in samples.cut}
    later = [block for block in range(1, samples.num_blocks - 1) if block not in broken]
    if 0 in samples.cut:
        return later
    return [0, *later] if samples.num_blocks > 1 and _is_as_long_as_declared(samples, declared) else later


def short_epoch(samples: Samples, declared: DeclaredSampling, expected: int) -> Gap | None:
    """The fullest complete epoch, if fewer samples were consumed in it than ``expected``, beyond what ``drop_last``
    drops.
    """
    gaps = [Gap(_size(samples, block), expected, block) for block in complete_blocks(samples, declared)]
    fullest = max(gaps, key=lambda gap: (gap.consumed, -gap.block), default=None)
    return fullest if fullest is not None and fullest.consumed + largest_step(samples) <= expected else None


def gap_of_own_rows(samples: Samples, declared: DeclaredSampling) -> Gap | None:
    """The first complete epoch, if every worker consumed one N-th of the rows that it said its data set has.

    That is right where the data set is the same on all workers, and a gap where each has rows of its own.
    """
    return _gap_of_one_part(samples, declared, declared.of_each("dataset_len"))


def gap_in_share(samples: Samples, declared: DeclaredSampling) -> Gap | None:
    """The first complete epoch, if every worker consumed one N-th of the part that its sampler deals to it."""
    lengths, parts = declared.of_each("dataset_len"), declared.num_replicas
    if lengths is None or parts is None or parts < 2:
        return None
    shares = {rank: length // parts for rank, length in lengths.items()}
    return _gap_of_one_part(samples, declared, shares)


def find_returns(samples: Samples) -> Returns:
    """Samples that every reshuffled epoch took over from the one before, of the same start of the job."""
    fresh: dict[int, int] = {}
    stays, chances, blocks = [np.zeros(0, dtype=bool)], [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for block in range(1, samples.num_blocks):
        before, now = samples.slots_of(block - 1), samples.slots_of(block)
        if block - 1 not in samples.cut and _reshuffled(samples, before, now):
            fresh[block] = int(np.count_nonzero(samples.first_in_run[now] >= now.start))
            stay, chance = _stays_and_chances(samples, before, now)
            stays.append(stay)
            chances.append(chance)
            blocks.append(np.full(len(stay), block, dtype=np.int64))
    return Returns(np.concatenate(stays), np.concatenate(chances), np.concatenate(blocks), fresh)


def fresh_after_complete(samples: Samples, declared: DeclaredSampling, returns: Returns) -> int | None:
    """Number of fresh samples that an epoch brought though the one before was complete, beyond what ``drop_last``
    leaves over; None where it is none.
    """
    complete = set(complete_blocks(samples, declared))
    counts = [count for block, count in returns.fresh.items() if block - 1 in complete]
    largest = max(counts, default=0)
    return largest if largest > largest_step(samples) else None


def log_e_of_staying(returns: Returns) -> float | None:
    """Natural log of the evidence that samples stay on their workers, or None where chance explains it.

    If all workers drew from one data set, then given everything before, each of the samples that the epoch before
    held once is equally likely to be the next to come again (``shard_overlap.py``): the largest value of
    the test martingale of that.
    """
    trials = np.ones(len(returns.stays), dtype=np.int64)
    log_e = float(log_e_process(returns.stays.astype(np.int64), trials, returns.chance, returns.block).max(initial=0.0))
    return log_e if log_e >= math.log(1 / (ALARM_LEVEL * COVERAGE_SHARE)) else None


def draws_with_replacement(samples: Samples, declared: DeclaredSampling) -> bool:
    """True where workers repeat samples within an epoch as often as drawing with replacement would, and not never.

    n draws of L rows give about n (n - 1)/(2 L) repeats; the nearer of that and none decides.
    """
    lengths = declared.of_each("dataset_len")
    if lengths is None:
        return False
    owner = samples.block * len(samples.ranks) + samples.worker
    drawn = np.bincount(owner)
    length = np.array([lengths[rank] for rank in samples.ranks])[np.arange(len(drawn)) % len(samples.ranks)]
    repeats = len(samples) - len(np.unique(first_equal(owner, samples.digest)))
    return repeats >= float(np.sum(drawn * (drawn - 1.0) / (2 * np.maximum(length, 1)))) / 2


def require_returns(samples: Samples) -> None:
    """Raise ``CannotTell`` where later epochs hold no sample of earlier ones: digests then tell nothing."""
    has_epochs = samples.num_blocks > 1 and samples.block_known
    if has_epochs and np.all(samples.block[samples.first_in_run] == samples.block):
        raise CannotTell(
            f"none of the samples came again in {counted(samples.num_blocks, 'epoch')}: they are changed on the fly or "
            "streamed, and digests do not show who consumed which",
            reason="undecidable",
        )


def rows_are_distinct(samples: Samples, dataset_len: int) -> bool:
    """True where the Run consumed as many distinct samples as the data set has rows, and more samples than that.

    Then, by the pigeonhole principle, no two rows are equal, and none was changed on the fly.
    """
    return num_distinct(samples.digest) == dataset_len < len(samples)


def _size(samples: Samples, block: int) -> int:
    slots = samples.slots_of(block)
    return slots.stop - slots.start


def _gap_of_one_part(samples: Samples, declared: DeclaredSampling, whole: dict[int, int] | None) -> Gap | None:
    """The first complete epoch, if in all of them every worker consumed one N-th of its ``whole``.

    To within a step, and nearer to one N-th than to the whole.
    """
    blocks = complete_blocks(samples, declared)
    if whole is None or not blocks:
        return None
    num_workers = len(samples.ranks)
    whole_N = np.array([whole[rank] for rank in samples.ranks])
    gaps: list[Gap] = []
    for block in blocks:
        consumed_N = np.bincount(samples.worker[samples.slots_of(block)], minlength=num_workers)
        off_N = np.abs(consumed_N * num_workers - whole_N)
        if np.any(off_N > largest_step(samples)) or np.any(off_N >= np.abs(consumed_N - whole_N) * num_workers):
            return None
        gaps.append(Gap(consumed=int(consumed_N.sum()), expected=int(whole_N.sum()), block=block))
    return gaps[0]


def _is_as_long_as_declared(samples: Samples, declared: DeclaredSampling) -> bool:
    """True where each worker consumed, in the first block, its sampler's share of its data set, up to one incomplete
    batch.
    """
    lengths, batch_sizes = declared.of_each("dataset_len"), declared.of_each("batch_size")
    if lengths is None or batch_sizes is None or not declared.num_replicas:
        return False
    parts = declared.num_replicas
    consumed_N = np.bincount(samples.worker[samples.slots_of(0)], minlength=len(samples.ranks))
    return all(
        lengths[rank] // parts - batch_sizes[rank] < consumed <= -(-lengths[rank] // parts)
        for rank, consumed in zip(samples.ranks, consumed_N.tolist(), strict=True)
    )


def _stays_and_chances(samples: Samples, before: slice, now: slice) -> tuple[Bools, Floats]:
    """Samples that ``before`` held once and ``now`` holds again: True where the worker is the old one [E], and the
    chance of that [E].
    """
    digests, first, counts = np.unique(samples.digest[before], return_index=True, return_counts=True)
    digests, home = digests[counts == 1], samples.worker[before][first[counts == 1]]
    if not len(digests):
        return np.zeros(0, dtype=bool), np.zeros(0)
    arriving: Ints = _first_slots(samples)[now].nonzero()[0] + int(now.start)
    position = np.minimum(np.searchsorted(digests, samples.digest[arriving]), len(digests) - 1)
    in_before = digests[position] == samples.digest[arriving]
    worker_E, home_E = samples.worker[arriving[in_before]], home[position[in_before]]
    order_E = np.arange(len(worker_E))
    gone_E = Tally(home_E, order_E).count_between(np.zeros_like(order_E), order_E, worker_E)
    left_E = np.bincount(home, minlength=len(samples.ranks))[worker_E] - gone_E
    return home_E == worker_E, left_E / (len(digests) - order_E)


def _first_slots(samples: Samples) -> Bools:
    """[n] slots that are the first of their block with their digest."""
    return samples.first == np.arange(len(samples))


def _reshuffled(samples: Samples, before: slice, now: slice) -> bool:
    """True where no worker starts the epoch as it started the one before."""
    for worker in range(len(samples.ranks)):
        old, new = (_first_batch(samples, block, worker) for block in (before, now))
        if len(old) and np.array_equal(old, new):
            return False
    return True


def _first_batch(samples: Samples, block: slice, worker: int) -> np.ndarray:
    stop = int(samples.step_end[block.start])
    return samples.digest[block.start : stop][samples.worker[block.start : stop] == worker]
