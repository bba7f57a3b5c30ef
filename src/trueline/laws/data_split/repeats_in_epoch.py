"""Repeats of samples within an epoch: do they fall between workers more often than chance lets them?

The mathematics is on the manual page of ``shard_overlap.py``. n slots, M repeats, N workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints
from trueline.judge.stats.tails import (
    ALARM_LEVEL,
    NAMING_LEVEL,
    binomial_tail,
    evidence_start,
    log_e_process,
    log_likelihood_steps,
)
from trueline.laws.data_split.consumed import Samples, Tally

TOTAL_SHARE = 0.5
RANK_SHARE = 0.3
"""Shares of ``ALARM_LEVEL``: on repeats between any workers, on those that involve one worker (over all N
together); the rest, 0.2, is for coverage (``laws/data_split/coverage.py``)."""

_CANDIDATES = 4
"""Workers that are tested by themselves: those with the most repeats. The level is paid for all N."""


@dataclass(frozen=True)
class Repeats:
    """Second occurrences of a sample within its block, [M] each, in order.

    ``slot`` is that of the repeat, ``first`` that of the first occurrence; ``worker`` and ``first_worker`` had them.
    ``chance`` is the probability that the two are different workers, given everything before and that one of the
    samples seen once so far comes again.
    """

    slot: Ints
    first: Ints
    worker: Ints
    first_worker: Ints
    chance: Floats
    block: Ints

    @property
    def across_workers(self) -> Bools:
        """[M] repeats of samples that two workers consumed."""
        return self.worker != self.first_worker

    def __len__(self) -> int:
        return len(self.slot)


class SeenOnce:
    """Numbers of samples that a slot could repeat: those that its block has held once so far.

    ``one_data_set`` says that all workers were declared to draw from one data set, which is shuffled anew for every
    epoch. Otherwise shards may be fixed, and two equal rows meet the same two workers in every epoch: then a sample
    counts in the first block only that holds it twice. Blocks in the order of an earlier one never count.
    """

    def __init__(self, samples: Samples, *, one_data_set: bool) -> None:
        self.one_data_set = one_data_set
        self._samples = samples
        counts = ~_not_reshuffled(samples) if one_data_set else samples.unused
        first, second = _first_pairs(samples, counts)
        no_padding = ~(may_be_padding(samples)[second] & samples.in_first_step[first]) & ~samples.in_first_step[second]
        self.first, self.second = first[no_padding], second[no_padding]
        of_first_step = samples.in_first_step[first]
        opened = np.flatnonzero((samples.first == np.arange(len(samples))) & counts)
        self._opened = Tally(samples.worker[opened], opened)
        self._ended = Tally(samples.worker[first[~of_first_step]], second[~of_first_step])
        self._ended_of_first_step = Tally(samples.worker[first[of_first_step]], second[of_first_step])

    def count(self, slot_M: Ints, worker_M: Ints | None) -> Ints:
        """[M] for each slot the number of samples seen once before it in its block, by a worker (None: by any).

        Padding repeats what the first step of a block held, in the last step of it; there, and everywhere where
        blocks are not known, the first step does not count.
        """
        samples = self._samples
        start_M = samples.block_start[slot_M]
        padding_M = may_be_padding(samples)[slot_M]
        from_M = np.minimum(np.where(padding_M, samples.step_end[start_M], start_M), slot_M)
        ended_M = self._ended.count_between(start_M, slot_M, worker_M)
        ended_M += np.where(padding_M, 0, self._ended_of_first_step.count_between(start_M, slot_M, worker_M))
        return self._opened.count_between(from_M, slot_M, worker_M) - ended_M


@dataclass(frozen=True)
class Overlap:
    """Repeats between workers that chance does not explain: indices into ``Repeats`` since the evidence starts."""

    events: Ints
    alarm_step: int
    log_e: float


def may_be_padding(samples: Samples) -> Bools:
    """[n] slots that may hold padding: those in the last step of their block, or all where nobody knows where blocks
    end.
    """
    return samples.in_last_step if samples.block_known else np.ones(len(samples), dtype=bool)


def find_repeats(samples: Samples, seen_once: SeenOnce) -> Repeats:
    """Second occurrences in ``samples`` that can tell something, with their chances."""
    first, slot = seen_once.first, seen_once.second
    worker = samples.worker[slot]
    return Repeats(
        slot=slot,
        first=first,
        worker=worker,
        first_worker=samples.worker[first],
        chance=1 - seen_once.count(slot, worker) / np.maximum(seen_once.count(slot, None), 1),
        block=samples.block[slot],
    )


def find_overlap(samples: Samples, seen_once: SeenOnce, repeats: Repeats) -> Overlap | None:
    """The repeats that alarm, or None."""
    tests = overlap_tests(samples, repeats, seen_once)
    alarms = [alarm for test in tests if (alarm := _alarm(samples, repeats, *test)) is not None]
    return min(alarms, key=lambda alarm: alarm.alarm_step, default=None)


def overlap_tests(samples: Samples, repeats: Repeats, seen_once: SeenOnce) -> list[tuple[Ints, Bools, Floats, float]]:
    """The tests on all workers and on single ones: indices of events [E], hits [E], chance [E], and its share of the
    level.

    With two workers, one of them is in as many repeats between workers as both.
    """
    num_workers, crossing = len(samples.ranks), repeats.across_workers
    all_events = np.arange(len(repeats))
    if num_workers < 3 or not crossing.any():
        return [(all_events, crossing, repeats.chance, TOTAL_SHARE + RANK_SHARE)]
    involved = _times_involved(repeats, crossing, num_workers)
    return [
        (all_events, crossing, repeats.chance, TOTAL_SHARE),
        *(
            (*_test_of_worker(int(worker), repeats, seen_once), RANK_SHARE / num_workers)
            for worker in np.argsort(-involved, kind="stable")[:_CANDIDATES]
        ),
    ]


def workers_to_name(repeats: Repeats, events: Ints, num_workers: int) -> list[int]:
    """Workers that the repeats between workers single out, or else all that they involve; indices, ascending.

    If all were equal, a worker would be in 2/N of the repeats; one that is in more than chance explains is named.
    """
    crossing = events[repeats.across_workers[events]]
    involved = _times_involved(repeats, crossing, num_workers)
    if num_workers > 2:
        to_name: list[int] = []
        for worker in np.argsort(-involved, kind="stable").tolist():
            if binomial_tail(int(involved[worker]), len(crossing), 2 / num_workers) * num_workers >= NAMING_LEVEL:
                break
            to_name.append(worker)
        if to_name:
            return sorted(to_name)
    return [int(worker) for worker in np.flatnonzero(involved)]


def _times_involved(repeats: Repeats, events: Ints | Bools, num_workers: int) -> Ints:
    """[N] numbers of these repeats, all between two workers, in which each worker is one of the two."""
    workers = np.concatenate([repeats.worker[events], repeats.first_worker[events]])
    return np.bincount(workers, minlength=num_workers)


def _first_pairs(samples: Samples, counts: Bools) -> tuple[Ints, Ints]:
    """First and second slot of every sample that its block holds twice or more, in order of the second."""
    repeated = np.flatnonzero((samples.first != np.arange(len(samples))) & counts)
    first = samples.first[repeated]
    _, position = np.unique(first, return_index=True)
    position.sort()
    return first[position], repeated[position]


def _not_reshuffled(samples: Samples) -> Bools:
    """[n] slots of blocks whose first step is, on all workers, that of an earlier block: nothing was reshuffled."""
    contents: set[bytes] = set()
    repeated_K = np.zeros(max(samples.num_blocks, 1), dtype=bool)
    for block in range(samples.num_blocks):
        start = samples.slots_of(block).start
        step = slice(start, int(samples.step_end[start]))
        content = samples.digest[step].tobytes() + samples.worker[step].tobytes()
        repeated_K[block] = content in contents
        contents.add(content)
    return repeated_K[samples.block]


def _test_of_worker(worker: int, repeats: Repeats, seen_once: SeenOnce) -> tuple[Ints, Bools, Floats]:
    """Test of whether ``worker`` is in more repeats than chance gives: indices of events [E], hits [E], chance [E]."""
    repeats_own = repeats.worker == worker
    # without one data set, a repeat between two other workers tells nothing of this one
    relevant = (
        repeats_own
        | (repeats.first_worker == worker)
        | (repeats.first_worker == repeats.worker)
        | seen_once.one_data_set
    )
    events = np.flatnonzero(relevant)
    slot, repeating_worker = repeats.slot[events], repeats.worker[events]
    by_worker = seen_once.count(slot, np.full(len(events), worker))
    if seen_once.one_data_set:
        candidates = seen_once.count(slot, None)
    else:
        candidates = by_worker + seen_once.count(slot, repeating_worker)
    chance = np.where(repeats_own[events], repeats.chance[events], by_worker / np.maximum(candidates, 1))
    hits = (repeats.first_worker[events] == worker) != repeats_own[events]
    return events, hits, chance


def _alarm(
    samples: Samples, repeats: Repeats, events: Ints, hits: Bools, chance: Floats, share: float
) -> Overlap | None:
    threshold = math.log(1 / (ALARM_LEVEL * share))
    trials, hits_E = np.ones(len(events), dtype=np.int64), hits.astype(np.int64)
    log_e = log_e_process(hits_E, trials, chance, repeats.block[events])
    if not len(log_e) or log_e.max() < threshold:
        return None
    alarm = int(np.argmax(log_e >= threshold))
    start = evidence_start(log_likelihood_steps(hits_E, trials, chance), alarm)
    return Overlap(
        events=np.arange(int(events[start]), len(repeats)),
        alarm_step=int(samples.step[repeats.slot[events[alarm]]]),
        log_e=float(log_e.max()),
    )
