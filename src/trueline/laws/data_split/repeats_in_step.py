"""Samples that several workers consume in one and the same step: more than chance gives, and on which workers?

The mathematics is on the manual page of ``duplicate_data.py``. n slots, C classes (equal digests of a
stretch that occur twice or more), N workers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.tails import ALARM_LEVEL, evidence_start, log_e_process, log_likelihood_steps
from trueline.laws.data_split.consumed import (
    Samples,
    consumed_samples,
    first_equal,
    not_repeated_in_earlier,
    stretch_bounds,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run


@dataclass(frozen=True)
class Duplicates:
    """Groups of workers (indices) that consumed the same samples in the same steps, since the evidence starts.

    ``shared`` and ``consumed`` count slots of those workers over ``step_first`` to ``step_last``; ``chance`` is the
    share of slots of which chance gives another one with the same sample in the same step on another worker. With
    ``same_position`` all of it counts samples at the same position of the step only, which tell most.
    ``num_at_old_position`` counts samples that came again in other steps if each did so at its position, beyond chance,
    else it is 0.
    """

    groups: tuple[tuple[int, ...], ...]
    step_first: int
    step_last: int
    num_steps: int
    shared: int
    consumed: int
    chance: float
    log_e: float
    same_position: bool
    num_at_old_position: int


@dataclass(frozen=True)
class Reveal:
    """Equal samples of a stretch, in order of their first slot: [C] each.

    ``first`` is the first slot of the class, ``num_repeats`` the number of its further slots, ``hits`` that of those in
    the same step on another worker, ``chance`` the probability of that for each.
    """

    first: Ints
    num_repeats: Ints
    hits: Ints
    chance: Floats
    block: Ints
    same_position: bool

    def log_e(self) -> Floats:
        """[C] natural log of the evidence against chance after each class."""
        return log_e_process(self.hits, self.num_repeats, self.chance, self.block)

    def start(self, alarm: int) -> int:
        """The slot at which the evidence starts that is there after class ``alarm``."""
        steps = log_likelihood_steps(self.hits, self.num_repeats, self.chance)
        return int(self.first[evidence_start(steps, alarm)])


def comparable_slots(samples: Samples) -> Bools:
    """[n] slots of blocks of two steps or more.

    Where an epoch is a single step, a sampler's padding repeats samples of that same step on other workers, by
    design.
    """
    ends_K = np.append(np.flatnonzero(np.diff(samples.block)), len(samples) - 1)
    starts_K = np.append(0, ends_K[:-1] + 1)
    judged_K = samples.step[starts_K] != samples.step[ends_K]
    return np.repeat(judged_K, ends_K - starts_K + 1)


@memoized
def find_duplicates(samples: Samples) -> Duplicates | None:
    """The duplicates that alarm, or None."""
    reveals = find_reveals(samples)
    tests = [(log_e, reveal) for reveal in reveals if len(log_e := reveal.log_e())]
    log_e, strongest = max(tests, key=lambda test: float(test[0].max()), default=(np.zeros(1), None))
    if strongest is None or log_e.max() < math.log(len(reveals) / ALARM_LEVEL):
        return None
    start = strongest.start(int(np.argmax(log_e)))
    return _describe(samples, start, log_e=float(log_e.max()), same_position=strongest.same_position)


def duplicates_cover(run: Run, finding: Finding, ranks: Collection[int]) -> bool:
    """True where ``ranks`` are workers that, by digests, consumed the same samples over some steps of a Finding: then
    `duplicate-data` has said it, exactly.
    """
    try:
        samples = consumed_samples(run)
    except CannotTell:
        return False
    duplicates = find_duplicates(samples)
    if duplicates is None or finding.step_first is None or finding.step_last is None:
        return False
    meets = duplicates.step_first <= finding.step_last and finding.step_first <= duplicates.step_last
    groups = [{samples.ranks[worker] for worker in group} for group in duplicates.groups]
    return meets and any(set(ranks) <= group for group in groups)


def find_reveals(samples: Samples) -> list[Reveal]:
    """The four ways to look: equal samples of a whole block, or of one step; at any, or at the same, position."""
    steps = np.cumsum(samples.step_start == np.arange(len(samples))) - 1
    return [
        _reveal(samples, stretch, first, same_position=same_position)
        for stretch, first in ((samples.block, samples.first), (steps, samples.first_in_step))
        for same_position in (False, True)
    ]


def shared_slots(samples: Samples, *, same_position: bool) -> Bools:
    """[n] slots whose sample another worker consumed in the same step; with ``same_position`` only there."""
    group = samples.first_in_place if same_position else samples.first_in_step
    other_worker = samples.worker != samples.worker[group]
    is_shared = np.zeros(len(samples), dtype=bool)
    is_shared[group[other_worker]] = True
    return is_shared[group]


def _reveal(samples: Samples, stretch: Ints, first: Ints, *, same_position: bool) -> Reveal:
    """Places of the equal samples of each stretch: with the ``first`` in the same step on other workers, or elsewhere.

    With ``same_position`` only those at the same position of the step count.
    """
    later = np.flatnonzero(first != np.arange(len(samples)))
    earlier = first[later]
    hit = (samples.step_start[earlier] == samples.step_start[later]) & (
        samples.worker[earlier] != samples.worker[later]
    )
    if same_position:
        hit &= samples.position[earlier] == samples.position[later]
    classes, of_later = np.unique(earlier, return_inverse=True)
    counts = comparable_slots(samples)[classes] & not_repeated_in_earlier(stretch, first, samples.digest, classes)
    first_slots, hits = classes[counts], np.bincount(of_later[hit], minlength=len(classes))[counts]
    start, end = (np.searchsorted(stretch, stretch[first_slots], side=side) for side in ("left", "right"))
    ordered = np.sort(earlier)

    def revealed(slots: Ints) -> Ints:
        """Number of slots that are known once all classes that begin before each of ``slots`` are."""
        return slots - np.searchsorted(later, slots) + np.searchsorted(ordered, slots)

    num_unknown = (end - start) - 1 - (revealed(first_slots) - revealed(start))
    targets = _later_at_position(samples, first_slots) if same_position else _on_later_workers(samples, first_slots)
    return Reveal(
        first=first_slots,
        num_repeats=np.bincount(of_later, minlength=len(classes))[counts],
        hits=hits,
        chance=np.minimum(1.0, targets / np.maximum(num_unknown, 1)),
        block=samples.block[first_slots],
        same_position=same_position,
    )


def _describe(samples: Samples, start: int, *, log_e: float, same_position: bool) -> Duplicates:
    judged = comparable_slots(samples) & (np.arange(len(samples)) >= samples.step_start[start])
    shared = shared_slots(samples, same_position=same_position) & judged
    num_workers = len(samples.ranks)
    consumed_N = np.bincount(samples.worker[judged], minlength=num_workers)
    chance = _chance_of_sharing(samples) / (_positions(samples) if same_position else 1.0)
    groups = _linked_groups(samples, shared, consumed_N, chance, same_position=same_position)
    # no pair stands out: all that share anything are one group
    groups = groups or (tuple(np.unique(samples.worker[shared]).tolist()),)
    members = np.zeros(num_workers, dtype=bool)
    members[[worker for group in groups for worker in group]] = True
    shared_by_groups = shared & members[samples.worker]
    steps = np.unique(samples.step[shared_by_groups])
    consumed = judged & members[samples.worker] & (samples.step >= steps[0]) & (samples.step <= steps[-1])
    return Duplicates(
        groups=groups,
        step_first=int(steps[0]),
        step_last=int(steps[-1]),
        num_steps=len(steps),
        shared=int(np.count_nonzero(shared_by_groups)),
        consumed=int(np.count_nonzero(consumed)),
        chance=chance,
        log_e=log_e,
        same_position=same_position,
        num_at_old_position=_num_at_old_position(samples) if same_position else 0,
    )


def _positions(samples: Samples) -> float:
    """Slots that a worker has in a step, on average."""
    return float(np.mean(samples.step_end - samples.step_start)) / len(samples.ranks)


def _num_at_old_position(samples: Samples) -> int:
    """Number of slots that hold a sample of an earlier step of their block, if each holds it at its first position, by
    chance with a probability of at most ``ALARM_LEVEL``, and most slots hold new ones; else 0.

    Chance puts a sample at its old position once in as many times as a step has positions. Whole batches that come
    again, as where the order of the data is fixed, keep all positions of theirs: then most slots are repeated.
    """
    repeats = np.flatnonzero(samples.step_start[samples.first] != samples.step_start)
    at_old_position = bool(np.all(samples.position[repeats] == samples.position[samples.first[repeats]]))
    likely = len(repeats) * math.log(max(_positions(samples), 1.0)) < -math.log(ALARM_LEVEL)
    return len(repeats) if at_old_position and not likely and 2 * len(repeats) < len(samples) else 0


def _likelier_shared(shared_K: Ints, consumed_K: Ints, chance: float) -> Bools:
    """[K] numbers of shared slots that are likelier under the highest share of all K than under chance."""
    share_K = shared_K / np.maximum(consumed_K, 1)
    top, low = (float(np.clip(share, 1e-9, 1 - 1e-9)) for share in (share_K.max(initial=0), chance))
    if top <= low:
        return shared_K > 0
    unshared_K = consumed_K - shared_K
    return shared_K * math.log(top / low) + unshared_K * math.log((1 - top) / (1 - low)) > 0


def _chance_of_sharing(samples: Samples) -> float:
    """Share of slots that share their step with another worker by chance: how often one worker meets a sample again.

    The fraction of pairs of slots of one worker and block that hold equal samples, times the slots of the other
    workers in a step.
    """
    owner = samples.block * len(samples.ranks) + samples.worker
    size, slots = np.bincount(first_equal(owner, samples.digest)), np.bincount(owner)
    pairs, equal = (float(np.sum(count * (count - 1.0))) for count in (slots, size))
    in_step = float(np.mean(samples.step_end - samples.step_start)) * (1 - 1 / len(samples.ranks))
    return min(1.0, in_step * equal / pairs) if pairs else 0.0


def _linked_groups(
    samples: Samples, shared: Bools, consumed_N: Ints, chance: float, *, same_position: bool
) -> tuple[tuple[int, ...], ...]:
    """Groups of workers that share samples with each other, ascending.

    Two are linked if the number of samples that they share is likelier under the highest share of any pair than under
    chance.
    """
    slots = np.flatnonzero(shared)
    group = (samples.first_in_place if same_position else samples.first_in_step)[slots]
    worker = samples.worker[slots]
    order = np.lexsort((worker, group))
    group, worker = group[order], worker[order]
    linked = (group[1:] == group[:-1]) & (worker[1:] != worker[:-1])
    if not linked.any():
        return ()
    pairs, counts = np.unique(np.stack([worker[:-1][linked], worker[1:][linked]]), axis=1, return_counts=True)
    likelier = _likelier_shared(counts, consumed_N[pairs[0]], chance / max(len(samples.ranks) - 1, 1))
    return _components(pairs[:, likelier].T.tolist())


def _components(pairs: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """Members that pairs connect, directly or through others."""
    group_of: dict[int, set[int]] = {}
    for a, b in pairs:
        merged = group_of.get(a, {a}) | group_of.get(b, {b})
        group_of.update(dict.fromkeys(merged, merged))
    return tuple(sorted({tuple(sorted(group)) for group in group_of.values()}))


def _on_later_workers(samples: Samples, slots: Ints) -> Ints:
    """[C] slots of the same step on workers after that of each chosen slot."""
    if not len(slots):
        return slots
    return samples.step_end[slots] - stretch_bounds(samples.step_start, samples.worker)[1][slots]


def _later_at_position(samples: Samples, slots: Ints) -> Ints:
    """[C] slots of the same step and position on workers after that of each chosen slot."""
    if not len(slots):
        return slots
    in_step = np.zeros(len(samples), dtype=bool)
    in_step[samples.step_start[slots]] = True
    in_steps = np.flatnonzero(in_step[samples.step_start])
    worker, position, step = (column[in_steps] for column in (samples.worker, samples.position, samples.step_start))
    order = np.lexsort((worker, position, step))
    opens = np.ones(len(order), dtype=bool)
    opens[1:] = (np.diff(position[order]) != 0) | (np.diff(step[order]) != 0)
    ends = np.append(np.flatnonzero(opens)[1:], len(order))[np.cumsum(opens) - 1]
    later = np.empty(len(order), dtype=np.int64)
    later[order] = ends - np.arange(len(order)) - 1
    return later[np.searchsorted(in_steps, slots)]
