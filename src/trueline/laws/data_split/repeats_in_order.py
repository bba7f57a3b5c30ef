"""Samples that one rank reads again in the same order: soon after, or from a restart of the job on.

The mathematics is on the manual page of ``sample_repeats.py``. n samples, C batches, E distinct batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Bools, Floats, Ints
from trueline.judge.stats.tails import ALARM_LEVEL, evidence_start, log_e_process, log_likelihood_steps
from trueline.store.reader import Run

MOST_LAG = 16
"""Batches after which a repeat is looked for: as many loader workers as are usual."""

_FEWEST_ROUNDS = 4
"""Times that new batches come and are repeated, before it is more than a small data set that is read again."""

_REGULAR = 0.9
"""Fraction of the batches that are repeated as often as most are."""

_MOST_STARTS = 1000
"""Places, the latest, at which a stretch that is read again may have begun."""

_HELD_LONG = 8
"""Steps in a row with one batch from which on it is held."""

Digests = NDArray[np.uint64]


@dataclass(frozen=True)
class Batches:
    """Batches that one rank read between two starts of the job, in order: the digests of each (micro-)batch, the step
    that consumed it, and its epoch (-1 where none was seen).
    """

    digests: tuple[Digests, ...]
    steps: Ints
    epochs: Ints

    @property
    def steps_of_samples(self) -> Ints:
        """[n] the step that consumed each sample."""
        return np.repeat(self.steps, [len(digests) for digests in self.digests])

    @cached_property
    def content(self) -> Ints:
        """[C] a number that equal batches have in common, and different ones have not."""
        if not self._equally_long:
            return np.array([hash(part.tobytes()) for part in self.digests], dtype=np.int64)
        flat_CS = np.ascontiguousarray(np.stack(self.digests))
        rows_C = flat_CS.view(np.dtype((np.void, flat_CS.itemsize * flat_CS.shape[1]))).ravel()
        if len(np.unique(flat_CS[:, 0])) == len(flat_CS):  # no sample comes again: cheaper than comparing batches
            return np.arange(len(flat_CS))
        return np.unique(rows_C, return_inverse=True)[1].ravel().astype(np.int64)

    @cached_property
    def unchanged(self) -> Bools:
        """[C - 1] batches that are equal to the one before."""
        if not self._equally_long:
            return np.array([np.array_equal(*pair) for pair in pairwise(self.digests)], dtype=bool)
        flat_CS = np.stack(self.digests)
        return np.all(flat_CS[1:] == flat_CS[:-1], axis=1)

    @cached_property
    def _equally_long(self) -> bool:
        """True where all batches have one number of samples, and some."""
        return bool(self.digests) and len(self.digests[0]) > 0 and len({*map(len, self.digests)}) == 1


@dataclass(frozen=True)
class RegularRepeat:
    """Batches come ``times`` times, each ``lag`` batches after the time before, from step ``first`` to ``last``:
    ``repeated`` of ``batches`` are repeats. ``within_steps`` says that no two steps share a batch.
    """

    times: int
    lag: int
    first: int
    last: int
    repeated: int
    batches: int
    within_steps: bool


@dataclass(frozen=True)
class HeldBatch:
    """One batch at all of ``batches`` steps from ``first`` to ``last``, within one epoch, or ``anew``: the loader was
    begun again for each.
    """

    first: int
    last: int
    batches: int
    anew: bool


@dataclass(frozen=True)
class Reread:
    """Stretch from step ``first``, where the job was started again, to ``last``: the rank had read its ``samples`` from
    step ``like`` on, in that order, in the start ``like_start`` (from 1) of the job. ``read`` are all samples that it
    read since ``first``, ``batches_before`` the batches that ``like_start`` had read before these.
    """

    first: int
    last: int
    like: int
    samples: int
    like_start: int
    read: int
    batches_before: int | None


def read_batches(run: Run, ranks: Sequence[int]) -> dict[int, list[Batches]]:
    """Batches of each of ``ranks``, one entry for each start of the job that left digests; ranks without any are left
    out.
    """
    steps_R, ranks_R, lengths_R, values = run.flat("sample_digests", ranks=ranks)
    order = np.argsort(ranks_R, kind="stable")
    ends_R = np.cumsum(lengths_R)
    (epoch_TN, has_epoch_TN), (micro_TN, _) = run.pivot("epoch"), run.pivot("num_micro")
    columns = dict(zip(run.ranks, range(len(run.ranks)), strict=True))
    batches_of_rank: dict[int, list[Batches]] = {}
    for indices in np.split(order, np.flatnonzero(np.diff(ranks_R[order])) + 1) if len(order) else ():
        rank = int(ranks_R[indices[0]])
        column, indices = columns[rank], indices[lengths_R[indices] > 0]
        rows = [values[end - length : end] for end, length in zip(ends_R[indices], lengths_R[indices], strict=True)]
        steps_C = steps_R[indices].astype(np.int64)
        row_C = np.searchsorted(run.steps, steps_C)
        epochs_C = np.where(has_epoch_TN[row_C, column], np.nan_to_num(epoch_TN[row_C, column]), -1).astype(np.int64)
        if batches := _split_rows(run, rows, steps_C, epochs_C, micro_TN[row_C, column]):
            batches_of_rank[rank] = batches
    return batches_of_rank


def _split_rows(run: Run, rows: Sequence[Digests], steps_C: Ints, epochs_C: Ints, micro_C: Floats) -> list[Batches]:
    """Batches of one rank for each start of the job, from the ``rows`` of its steps, ascending."""
    batches: list[Batches] = []
    sizes_C = np.array([len(row) for row in rows], dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        # a step that does not divide into its micro-batches stays one batch
        splits_C = (micro_C > 1) & (np.mod(sizes_C, micro_C) == 0)
    counts_C = np.where(splits_C, micro_C, 1).astype(np.int64)
    bounds = [0, *np.searchsorted(steps_C, run.restarts).tolist(), len(steps_C)]
    for begin, end in pairwise(bounds):
        parts = rows[begin:end]
        if splits_C[begin:end].any():
            counted_rows = zip(parts, counts_C[begin:end].tolist(), strict=True)
            parts = [part for row, count in counted_rows for part in (np.split(row, count) if count > 1 else [row])]
        if parts:
            steps, epochs = (np.repeat(values_C[begin:end], counts_C[begin:end]) for values_C in (steps_C, epochs_C))
            batches.append(Batches(tuple(parts), steps, epochs))
    return batches


def find_regular_repeat(batches: Batches, *, tests: int) -> RegularRepeat | None:
    """The lag at which batches come again and again within an epoch, or None; ``tests`` share the level."""
    classes = _classes(batches)
    repeats = [_repeat_at_lag(batches, classes, lag, tests=tests * MOST_LAG) for lag in range(1, MOST_LAG + 1)]
    return max((repeat for repeat in repeats if repeat is not None), key=lambda repeat: repeat.repeated, default=None)


def find_held_batch(batches: Batches) -> HeldBatch | None:
    """The longest stretch in which each step reads the batch of the step before, in one epoch or each in the next one;
    None where that is short, or steps accumulate. Without a loader whose epochs were seen all is one epoch.
    """
    steps, epochs = batches.steps, batches.epochs
    if len(np.unique(steps)) < len(steps) or (np.any(epochs < 0) and np.any(epochs >= 0)):
        return None
    unchanged = batches.unchanged
    stretches: list[HeldBatch] = []
    for anew in (False, True):
        ends = np.flatnonzero(~np.r_[False, unchanged & (np.diff(epochs) == anew), False])
        longest = int(np.argmax(np.diff(ends)))
        begin, end = int(ends[longest]), int(ends[longest + 1]) - 1
        if end - begin + 1 >= _HELD_LONG:
            stretches.append(HeldBatch(int(steps[begin]), int(steps[end]), end - begin + 1, anew))
    return max(stretches, key=lambda stretch: stretch.batches, default=None)


def changes_every_step(batches: Batches, stretch: HeldBatch) -> bool:
    """True where a rank read another batch at every step of the stretch."""
    inside = np.flatnonzero((batches.steps >= stretch.first) & (batches.steps <= stretch.last))
    parts = [batches.digests[position] for position in inside]
    return len(parts) >= stretch.batches and not any(np.array_equal(*pair) for pair in pairwise(parts))


@dataclass(frozen=True)
class _Classes:
    """Equal batches of one epoch, in the order of their first one: ``first``, how many (``size``), one past the last
    batch of the epoch (``end``), and the probability that one of the others is at a given place that is not known yet
    (``chance``), times the number of the others. ``key`` [C] has the class of each batch, ``content`` is equal for
    equal batches of any epoch.
    """

    key: Ints
    content: Ints
    block: Ints
    first: Ints
    size: Ints
    end: Ints
    chance: Floats


def _classes(batches: Batches) -> _Classes:
    content_C = batches.content
    block_C = np.cumsum(np.diff(batches.epochs, prepend=batches.epochs[:1]) != 0)
    _, key_C = np.unique(np.stack([block_C, content_C]), axis=1, return_inverse=True)
    key_C = key_C.ravel()
    _, first_E, size_E = np.unique(key_C, return_index=True, return_counts=True)
    order = np.argsort(first_E)
    first_E, size_E = first_E[order], size_E[order]
    begin_E, end_E = (np.searchsorted(block_C, block_C[first_E], side=side) for side in ("left", "right"))
    revealed_E = np.cumsum(size_E) - size_E
    unknown_E = (end_E - begin_E) - 1 - (revealed_E - revealed_E[np.searchsorted(first_E, begin_E)])
    chance_E = np.minimum(1.0, (size_E - 1) / np.maximum(unknown_E, 1))
    return _Classes(key_C, content_C, block_C[first_E], first_E, size_E, end_E, chance_E)


def _repeat_at_lag(batches: Batches, classes: _Classes, lag: int, *, tests: int) -> RegularRepeat | None:
    """Repeats at one lag, or None."""
    first_E, key_C = classes.first, classes.key
    hits_E = np.zeros(len(first_E), dtype=np.int64)
    for j in range(1, int(classes.size.max())):
        at_E = first_E + j * lag
        inside = np.flatnonzero((j < classes.size) & (at_E < classes.end))
        if not len(inside):
            break
        hits_E[inside] += key_C[at_E[inside]] == key_C[first_E[inside]]
    repeated = np.flatnonzero(classes.size > 1)
    test = hits_E[repeated], classes.size[repeated] - 1, classes.chance[repeated]
    log_e = log_e_process(*test, classes.block[repeated])
    if not len(log_e) or log_e.max() < math.log(tests / ALARM_LEVEL):
        return None
    start = evidence_start(log_likelihood_steps(*test), int(np.argmax(log_e)))
    return _describe_repeat(batches, classes, hits_E, lag, int(first_E[repeated[start]]))


def _describe_repeat(batches: Batches, classes: _Classes, hits_E: Ints, lag: int, start: int) -> RegularRepeat | None:
    """Repeats from batch ``start`` on, where they are regular and new batches keep coming: a small data set that is
    read again as a whole does not.
    """
    first_E, size_E, end_E = classes.first, classes.size, classes.end
    values, counts = np.unique(size_E[(first_E >= start) & (size_E > 1)], return_counts=True)
    times = int(values[np.argmax(counts)])
    complete = (first_E >= start) & (first_E + (times - 1) * lag < end_E)
    regular = complete & (size_E == times) & (hits_E == times - 1)
    rounds = len(np.unique(classes.content[first_E[regular]])) / lag
    if rounds < _FEWEST_ROUNDS or np.count_nonzero(regular) < _REGULAR * np.count_nonzero(complete):
        return None
    firsts = first_E[regular]
    lasts = firsts + (times - 1) * lag
    return RegularRepeat(
        times=times,
        lag=lag,
        first=int(batches.steps[firsts[0]]),
        last=int(batches.steps[lasts[-1]]),
        repeated=int(np.count_nonzero(regular)) * (times - 1),
        batches=int(lasts.max() - firsts[0]) + 1,
        within_steps=bool(np.all(batches.steps[firsts] == batches.steps[lasts])),
    )


def find_reread(before: Sequence[Batches], now: Batches, *, tests: int) -> Reread | None:
    """Stretch of the batches ``before`` that a rank reads again from the first sample of a start on; None
    where shuffling may do that, in one of ``tests``.
    """
    old = np.concatenate([part for batches in before for part in batches.digests])
    old_steps = np.concatenate([batches.steps_of_samples for batches in before])
    new, new_steps = np.concatenate(now.digests), now.steps_of_samples
    log_p = _log_chances(new) + math.log(len(old) * tests)
    for start in reversed(np.flatnonzero(old == new[0])[-_MOST_STARTS:].tolist()):
        length = _common_length(old[start:], new)
        if log_p[length - 1] <= math.log(ALARM_LEVEL):
            like_start, batches_before = _position(before, start)
            span = int(new_steps[0]), int(new_steps[length - 1]), int(old_steps[start])
            return Reread(*span, length, like_start, len(new), batches_before)
    return None


def _position(starts: Sequence[Batches], sample: int) -> tuple[int, int | None]:
    """The start (from 1) that read a sample, of all samples in order, and its batches before; None of these where the
    sample does not begin one.
    """
    for number, batches in enumerate(starts, 1):
        begins = np.cumsum([0, *map(len, batches.digests)])
        if sample < begins[-1]:
            batch = int(np.searchsorted(begins, sample))
            return number, batch if begins[batch] == sample else None
        sample -= int(begins[-1])
    raise IndexError(sample)


def _common_length(a: Digests, b: Digests) -> int:
    """Number of digests that are equal in a row from the first on."""
    num = min(len(a), len(b))
    differ = np.flatnonzero(a[:num] != b[:num])
    return int(differ[0]) if len(differ) else num


def _log_chances(new: Digests) -> Floats:
    """[n] natural logs of the probability that a shuffle of ``new`` begins with the 1, 2, ... samples that it does."""
    order = np.argsort(new, kind="stable")
    group = np.cumsum(np.diff(new[order], prepend=new[order[:1]]) != 0)
    size = np.bincount(group)
    seen_before = np.empty(len(new), dtype=np.int64)
    seen_before[order] = np.arange(len(new)) - (np.cumsum(size) - size)[group]
    group_of = np.empty(len(new), dtype=np.int64)
    group_of[order] = group
    return np.cumsum(np.log((size[group_of] - seen_before) / np.arange(len(new), 0, -1)))
