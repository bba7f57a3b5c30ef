"""A sample that is read again has another label than before, one that other samples have.

What it finds
-------------
Inputs and labels that are shuffled apart: two loaders that are zipped, `x[torch.randperm(n)]` beside
`y[torch.randperm(n)]`, a data set that draws the label at another index than the input. Classes that are numbered by
the order of a `set` or of a folder's listing, which is another one on each rank, or at each start of the job.

Why it matters
--------------
Nothing fails. The model can learn no more than how frequent labels are, or has to unlearn at each restart what it knew.

How it decides
--------------
The job contradicts itself: a sample is known by a digest of its values, and so is its label, where the model is called
on it, or where the loss keeps it (at sampled steps). Readings are divided into passes, in which no sample comes twice,
over all ranks. Where each whole pass has half of all samples or more, the data are gone through in turn, and two
readings of a sample, the first that have a label of one kind, are compared: in one start of the job, else in two. It is
said where more than one of 20 labels changed (so many as rows that the data have twice explain), and three or more
became the label of another sample. Nothing is estimated. It is to be confirmed, since labels may be made anew on
purpose.

Left alone: samples that are drawn again and again, as states that an agent visits or words with many followers; labels
that are the same at each place of a batch whatever stands there, as of pairs that are told from each other; labels that
no other sample has, as values of a teacher that learns, or positions that a mask draws.

What it may miss
----------------
Labels that were shuffled once, before the first epoch; data that are gone through once; augmented inputs, which are
other samples each time; draws with replacement; losses with several terms that keep labels.

Example
-------
247 of 512 samples that were read again had another label than before: labels and inputs do not belong together.

Wrong and right
---------------
Wrong:

```python
for x, y in zip(DataLoader(images, 32, shuffle=True), DataLoader(labels, 32, shuffle=True)):
    train(x, y)
```

Right:

```python
for x, y in DataLoader(TensorDataset(images, labels), 32, shuffle=True):
    train(x, y)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import MOST_RANKS, data_parallel_ranks, sites_of
from trueline.schema.columns.label_digests import KIND_BITS
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "labels-change"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("sample_digests", "target_digests", "label_digests")
ACROSS_RANKS = False

MOST_SAMPLES = 20_000_000
"""Samples that are looked at, the first: digests of 160 MB."""
MOST_PASSES = 64
"""Passes over the data that are told apart."""
HALF = 0.5
"""Share of all samples that each whole pass over the data has at least, and of batches with labels of their places."""
FEWEST = 8
"""Samples that were read twice with a label, of which a share is said."""
TWENTIETH = 0.05
"""Share of samples below which rows may be that the data have twice, with two labels."""
FEW = 3
"""Labels of other samples: one may be a row that the data have twice."""
UNKNOWN = 0

Numbers = NDArray[np.int64]
Digests = NDArray[np.uint64]


@dataclass(frozen=True)
class Readings:
    """Of each time that a sample was read, by step, then rank: step, rank, sample, label (0: not seen) and what kind of
    label it is.
    """

    steps: Numbers
    ranks: Numbers
    samples: Digests
    labels: Digests
    kinds: Digests


@dataclass(frozen=True)
class Pairs:
    """Two readings of a sample each, as places in ``Readings``, and whether the label is another one then, and is one
    that another sample has.
    """

    first: Numbers
    second: Numbers
    changed: NDArray[np.bool_]
    swapped: NDArray[np.bool_]

    @property
    def contradict(self) -> bool:
        """Whether more labels changed than rows that the data have twice explain."""
        changed = int(self.changed.sum())
        return len(self.first) >= FEWEST and changed > TWENTIETH * len(self.first) and int(self.swapped.sum()) >= FEW


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where too few samples were read twice with a label."""
    readings = _readings(run, data_parallel_ranks(run)[:MOST_RANKS])
    pairs = _pairs(readings)
    if len(pairs.first) < FEWEST:
        raise CannotTell(f"fewer than {FEWEST} samples were read twice with labels that were seen", reason="by-design")
    starts = np.searchsorted(run.restarts, readings.steps, side="right")
    same_start = starts[pairs.first] == starts[pairs.second]
    same_rank = readings.ranks[pairs.first] == readings.ranks[pairs.second]
    if (within := _one_a_sample(readings, pairs, same_start)).contradict:
        on_one = _one_a_sample(readings, pairs, same_start & same_rank)
        if len(on_one.first) < FEWEST or on_one.changed.any():
            return [_finding(run, readings, within, "again")]
        return [_finding(run, readings, _one_a_sample(readings, pairs, same_start & ~same_rank), "ranks")]
    if (between := _one_a_sample(readings, pairs, ~same_start)).contradict:
        return [_finding(run, readings, between, "restart")]
    return []


def _one_a_sample(readings: Readings, pairs: Pairs, chosen: NDArray[np.bool_]) -> Pairs:
    """The first of the chosen pairs of each sample."""
    chosen_P = np.flatnonzero(chosen)
    _, first = np.unique(readings.samples[pairs.first[chosen_P]], return_index=True)
    at = chosen_P[first]
    return Pairs(pairs.first[at], pairs.second[at], pairs.changed[at], pairs.swapped[at])


def _readings(run: Run, ranks: Sequence[int]) -> Readings:
    """Raises ``CannotTell`` where no labels were seen, or samples are not gone through in turn."""
    steps_R, ranks_R, lengths_R, samples_D = run.flat("sample_digests", ranks=ranks)
    num = int(np.searchsorted(np.cumsum(lengths_R), MOST_SAMPLES, side="right"))
    steps_R, ranks_R, lengths_R = steps_R[:num], ranks_R[:num], lengths_R[:num]
    samples_D = samples_D[: int(lengths_R.sum())]
    labels_D, kinds_D = _labels(run, ranks, steps_R, ranks_R, lengths_R)
    if not labels_D.any():
        raise CannotTell("no labels were seen that are one a sample, and are not those of its place in the batch")
    _ask_for_passes(samples_D)
    steps_D, ranks_D = np.repeat(steps_R, lengths_R), np.repeat(ranks_R, lengths_R)
    return Readings(steps_D.astype(np.int64), ranks_D.astype(np.int64), samples_D, labels_D, kinds_D)


def _labels(
    run: Run, ranks: Sequence[int], steps_R: Numbers, ranks_R: Numbers, lengths_R: Numbers
) -> tuple[Digests, Digests]:
    """[D] of each sample that was read: those that the model is called on, else those that the loss has; and kinds."""
    labels_D, kinds_D = (np.full(int(lengths_R.sum()), UNKNOWN, dtype=np.uint64) for _ in range(2))
    offsets_R = np.r_[0, np.cumsum(lengths_R)]
    place_of = {key: at for at, key in enumerate(zip(steps_R.tolist(), ranks_R.tolist(), strict=True))}
    # those that the model is called on are known at every step
    for column, mask in (("label_digests", (1 << KIND_BITS) - 1), ("target_digests", 0)):
        rows = {key: row for key, row in run.lists(column, ranks=list(ranks)).items() if key in place_of}
        of_places = _ranks_of_places(rows)
        for key, row in rows.items():
            at = place_of[key]
            if len(row) == lengths_R[at] and key[1] not in of_places:
                labels_D[offsets_R[at] : offsets_R[at + 1]] = row
                kinds_D[offsets_R[at] : offsets_R[at + 1]] = row & np.uint64(mask)
    return labels_D, kinds_D


def _ranks_of_places(rows: dict[tuple[int, int], Digests]) -> set[int]:
    """Ranks whose batches mostly have the labels of the batch before, and not one label: these are of the places."""
    before: dict[tuple[int, int], Digests] = {}
    num_same: dict[int, int] = {}
    num_all: dict[int, int] = {}
    for (_, rank), row in sorted(rows.items()):
        last = before.get((rank, len(row)))
        before[rank, len(row)] = row
        if last is not None and len(row) and (row != row[0]).any():
            num_all[rank] = num_all.get(rank, 0) + 1
            num_same[rank] = num_same.get(rank, 0) + int((row == last).all())
    return {rank for rank, number in num_all.items() if num_same[rank] > HALF * number}


def _ask_for_passes(samples_D: Digests) -> None:
    """Raises ``CannotTell`` where samples are not gone through in turn: in passes in which none comes twice."""
    before_D = _before(samples_D)
    latest_D = np.maximum.accumulate(before_D)
    begins = [0]
    while len(begins) <= MOST_PASSES:
        # the first sample that this pass has already
        end = int(np.searchsorted(latest_D, begins[-1]))
        if end >= len(samples_D):
            break
        begins.append(end)
    if len(begins) < 2:
        raise CannotTell("no sample was read twice with the same values", reason="by-design")
    if np.diff(begins).min() < HALF * np.count_nonzero(before_D < 0):
        raise CannotTell("the data are not gone through in turn: samples are drawn again and again", reason="by-design")


def _before(samples_D: Digests) -> Numbers:
    """[D] where the same sample was read the time before; -1 of the first time."""
    order_D = np.argsort(samples_D, kind="stable")
    is_same = samples_D[order_D[1:]] == samples_D[order_D[:-1]]
    before_D = np.full(len(samples_D), -1, dtype=np.int64)
    before_D[order_D[1:][is_same]] = order_D[:-1][is_same]
    return before_D


def _pairs(readings: Readings) -> Pairs:
    """Readings of a sample that follow each other among those with a label of one kind, by sample."""
    known_K = np.flatnonzero(readings.labels != UNKNOWN)
    kinds_K, samples_K = readings.kinds[known_K], readings.samples[known_K]
    order = np.lexsort((known_K, kinds_K, samples_K))
    known_K, kinds_K, samples_K = known_K[order], kinds_K[order], samples_K[order]
    goes_on = (samples_K[1:] == samples_K[:-1]) & (kinds_K[1:] == kinds_K[:-1])
    before, after = known_K[:-1][goes_on], known_K[1:][goes_on]
    changed = readings.labels[before] != readings.labels[after]
    return Pairs(before, after, changed, changed & _is_shared(readings, known_K, readings.labels[after]))


def _is_shared(readings: Readings, known_K: Numbers, labels: Digests) -> NDArray[np.bool_]:
    """Of each of ``labels`` whether two different samples have it."""
    of_samples = np.unique(np.stack([readings.labels[known_K], readings.samples[known_K]], 1), axis=0)
    labels_U, counts_U = np.unique(of_samples[:, 0], return_counts=True)
    return np.isin(labels, labels_U[counts_U > 1])


_WORDS = {
    "again": (
        "that were read again had another label than before",
        "labels and inputs do not belong together",
        "Read inputs and labels by one index: one loader over pairs, one permutation for both. If labels are made anew "
        "on purpose (clusters, labels that a model gives, a target that is drawn each time), leave it.",
    ),
    "ranks": (
        "that another rank read again have another label there",
        "ranks number classes differently",
        "Number classes in one order on all ranks: sorted(set(labels)), not the order of a set or of a folder.",
    ),
    "restart": (
        "have another label since the restart",
        "classes are numbered anew at each start",
        "Save the numbers of classes with the checkpoint, or number them in one order: sorted(set(labels)), not the "
        "order of a set or of a folder.",
    ),
}


def _finding(run: Run, readings: Readings, pairs: Pairs, kind: str) -> Finding:
    at = pairs.second[pairs.changed]
    changed, number = len(at), len(pairs.first)
    ranks, steps = tuple(np.unique(readings.ranks[at]).tolist()), readings.steps[at]
    what, why, advice = _WORDS[kind]
    location = f", on {ranks_text(ranks, all_ranks=run.ranks)}" if kind != "ranks" and len(run.ranks) > 1 else ""
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{changed:,} of {counted(number, 'sample')} {what}{location}: {why}.",
        ranks=ranks,
        step_first=int(steps.min()),
        step_last=int(steps.max()),
        sites=sites_of(int(steps.min()), ranks[:2], phase="loss", names=("all",)),
        measured=changed / number,
        expected=0.0,
        unit="share of samples with another label than before",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "samples": number, "changed": changed, "of_others": int(pairs.swapped.sum())},
        next=(advice,),
    )
