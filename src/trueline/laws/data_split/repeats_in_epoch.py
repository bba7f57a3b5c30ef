"""Repeats of samples within an epoch: do they fall between workers more often than chance lets them?

The mathematics is on the manual page of ``checks/samples/shard_overlap.py``. n slots, M repeats, N workers.
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
"""How ``ALARM_LEVEL`` is spent: on repeats between any workers, on those that involve one worker (over all N
together); the rest, 0.2, is for coverage (``laws/data_split/coverage.py``)."""

_CANDIDATES = 4
"""Workers that are tested by themselves: those with the most repeats. The level is paid for all N."""


@dataclass(frozen=True)
class Repeats:
    """Second occurrences of a sample within its block, [M] each, in order.

    ``slot`` is where the sample came again, ``first`` where it was before; ``here`` and ``there`` are the workers.
    ``chance`` is the probability that ``there`` is another worker than ``here``, given everything before and that one
    of the samples seen once so far comes again.
    """

    slot: Ints
    first: Ints
    here: Ints
    there: Ints
    chance: Floats
    block: Ints

    @property
    def between(self) -> Bools:
        """[M] whether two workers consumed the sample."""
        return self.here != self.there

    def __len__(self) -> int:
        return len(self.slot)


class SeenOnce:
    """How many samples that its block has held once so far a slot could repeat.

    ``one_data_set`` says that all workers were declared to draw from one data set, which is shuffled anew for every
    epoch. Otherwise shards may be fixed, and two equal rows meet the same two workers in every epoch: then a sample
    counts in the first block only that holds it twice. Blocks in the order of an earlier one never count.
    """

    def __init__(self, samples: Samples, *, one_data_set: bool) -> None:
        self.one_data_set = one_data_set
        self._samples = samples
        counts = ~_in_order_of_earlier(samples) if one_data_set else samples.unused
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
        ended_M = self._ended.between(start_M, slot_M, worker_M)
        ended_M += np.where(padding_M, 0, self._ended_of_first_step.between(start_M, slot_M, worker_M))
        return self._opened.between(from_M, slot_M, worker_M) - ended_M


@dataclass(frozen=True)
class Overlap:
    """Repeats between workers that chance does not explain: indices into ``Repeats`` since the evidence starts."""

    events: Ints
    alarm_step: int
    log_e: float


def may_be_padding(samples: Samples) -> Bools:
    """[n] whether the slot may hold padding: it is in the last step of its block, or nobody knows where blocks
    end.
    """
    return samples.in_last_step if samples.block_known else np.ones(len(samples), dtype=bool)


def repeats_of(samples: Samples, seen: SeenOnce) -> Repeats:
    """The second occurrences in ``samples`` that can tell something, with what chance gives."""
    first, slot = seen.first, seen.second
    here = samples.worker[slot]
    return Repeats(
        slot=slot,
        first=first,
        here=here,
        there=samples.worker[first],
        chance=1 - seen.count(slot, here) / np.maximum(seen.count(slot, None), 1),
        block=samples.block[slot],
    )


def find_overlap(samples: Samples, seen: SeenOnce, repeats: Repeats) -> Overlap | None:
    """The repeats that alarm, or None."""
    alarms = [
        alarm for test in tests_of(samples, repeats, seen) if (alarm := _alarm(samples, repeats, *test)) is not None
    ]
    return min(alarms, key=lambda alarm: alarm.alarm_step, default=None)


def tests_of(samples: Samples, repeats: Repeats, seen: SeenOnce) -> list[tuple[Ints, Bools, Floats, float]]:
    """The tests on all workers and on single ones: indices of events [E], hits [E], chance [E], and its share of the
    level.

    With two workers, one of them is in as many repeats between workers as both.
    """
    num_workers, between = len(samples.ranks), repeats.between
    everything = np.arange(len(repeats))
    if num_workers < 3 or not between.any():
        return [(everything, between, repeats.chance, TOTAL_SHARE + RANK_SHARE)]
    involved = np.bincount(np.concatenate([repeats.here[between], repeats.there[between]]), minlength=num_workers)
    return [
        (everything, between, repeats.chance, TOTAL_SHARE),
        *(
            (*_of_worker(int(worker), repeats, seen), RANK_SHARE / num_workers)
            for worker in np.argsort(-involved, kind="stable")[:_CANDIDATES]
        ),
    ]


def named_workers(repeats: Repeats, events: Ints, num_workers: int) -> list[int]:
    """Workers that the repeats between workers single out, or else all that they involve; indices, ascending.

    If all were equal, a worker would be in 2/N of the repeats; one that is in more than chance explains is named.
    """
    between = events[repeats.between[events]]
    involved = np.bincount(np.concatenate([repeats.here[between], repeats.there[between]]), minlength=num_workers)
    if num_workers > 2:
        named: list[int] = []
        for worker in np.argsort(-involved, kind="stable").tolist():
            if binomial_tail(int(involved[worker]), len(between), 2 / num_workers) * num_workers >= NAMING_LEVEL:
                break
            named.append(worker)
        if named:
            return sorted(named)
    return [int(worker) for worker in np.flatnonzero(involved)]


def _first_pairs(samples: Samples, counts: Bools) -> tuple[Ints, Ints]:
    """First and second slot of every sample that its block holds twice or more, in order of the second."""
    repeated = np.flatnonzero((samples.first != np.arange(len(samples))) & counts)
    first = samples.first[repeated]
    _, where = np.unique(first, return_index=True)
    where.sort()
    return first[where], repeated[where]


def _in_order_of_earlier(samples: Samples) -> Bools:
    """[n] whether the first step of the slot's block is, on all workers, that of an earlier block: nothing was
    reshuffled.
    """
    begun: set[bytes] = set()
    known = np.zeros(max(samples.num_blocks, 1), dtype=bool)
    for block in range(samples.num_blocks):
        start = samples.slots_of(block).start
        step = slice(start, int(samples.step_end[start]))
        content = samples.digest[step].tobytes() + samples.worker[step].tobytes()
        known[block] = content in begun
        begun.add(content)
    return known[samples.block]


def _of_worker(worker: int, repeats: Repeats, seen: SeenOnce) -> tuple[Ints, Bools, Floats]:
    """Events that tell whether ``worker`` is in more repeats than chance gives: indices [E], hits [E], chance [E]."""
    mine = repeats.here == worker
    relevant = mine | (repeats.there == worker) | (repeats.there == repeats.here) | seen.one_data_set
    events = np.flatnonzero(relevant)
    slot, here = repeats.slot[events], repeats.here[events]
    by_worker = seen.count(slot, np.full(len(events), worker))
    candidates = seen.count(slot, None) if seen.one_data_set else by_worker + seen.count(slot, here)
    chance = np.where(mine[events], repeats.chance[events], by_worker / np.maximum(candidates, 1))
    hits = (repeats.there[events] == worker) != mine[events]
    return events, hits, chance


def _alarm(
    samples: Samples, repeats: Repeats, events: Ints, hits: Bools, chance: Floats, share: float
) -> Overlap | None:
    threshold = math.log(1 / (ALARM_LEVEL * share))
    once, hits_E = np.ones(len(events), dtype=np.int64), hits.astype(np.int64)
    log_e = log_e_process(hits_E, once, chance, repeats.block[events])
    if not len(log_e) or log_e.max() < threshold:
        return None
    alarm = int(np.argmax(log_e >= threshold))
    start = evidence_start(log_likelihood_steps(hits_E, once, chance), alarm)
    return Overlap(
        events=np.arange(int(events[start]), len(repeats)),
        alarm_step=int(samples.step[repeats.slot[events[alarm]]]),
        log_e=float(log_e.max()),
    )
