"""Labels of a batch are of one class or few, while those of all batches are of many: the data are read sorted.

What it finds
-------------
A data set that lies in the order of its classes, as folders of pictures do, and a loader that reads it in that order:
`shuffle` left out, a `DistributedSampler` with `shuffle=False`, a stream whose shuffle buffer is smaller than a class.

Why it matters
--------------
Each update pulls the model to the class of its batch, and the next ones away again. Statistics of batch normalisation
are those of one class. The loss jumps whenever the class changes, and the model forgets.

How it decides
--------------
At the steps at which the targets of the only cross-entropy are counted by class (the first ones, and then at gaps that
double), of losses with a target a sample; of more classes than are counted, where each batch that was looked at is of
one class.

The null hypothesis is that labels are drawn independently. Given how many of each class there are, N labels of which
N_c are class c fall into batches of B_t, n_tc of them class c, with Fisher's probability
P = prod N_c! prod B_t! / (N! prod n_tc!). Q is the product of what a Dirichlet-multinomial law gives to each batch,
with concentration 1 in all, shared equally among the classes: it expects batches of few classes. Q / P has an
expectation of 1 at most, so that it exceeds 1e6 with probability 1e-6 at most (Markov). Draws without replacement, as
within an epoch, are more evenly spread still. That is shared among the ranks.

Beside that it must be much: with p the share of pairs of equal labels, in a batch and among all, 1/p - 1 classes beside
one are in a batch at most half as many as in all.

It is to be confirmed, as a job may learn class after class on purpose. Samplers of the program's own, which may draw
some classes for each batch, are left alone, and so are jobs in which no loader was seen but for batches of one class.

What it may miss
----------------
Labels that are no classes of a cross-entropy of torch; sorted lengths, dates or places; classes that change slower than
the steps that are looked at.

Example
-------
Each batch has labels of one class, at 8 steps that were looked at, of 6 classes in all: Folder is read in its order
(SequentialSampler), which is sorted by class.

Wrong and right
---------------
Wrong:

```python
loader = DataLoader(ImageFolder(root), batch_size=64)
```

Right:

```python
loader = DataLoader(ImageFolder(root), batch_size=64, shuffle=True)
```
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import MOST_RANKS, data_parallel_ranks, sites_of
from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.schema.columns.input_values import input_values
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "labels-sorted"
CALLS = {"": ("DataLoader",)}
QUESTION = "repeats"
NEEDS: tuple[str, ...] = ("class_counts", "sample_digests", "input_facts", "input_values")
ACROSS_RANKS = False

CONCENTRATION = 1.0
"""Of the Dirichlet law of classes in a batch that stands against the null hypothesis: half of two labels are equal by
it where there are many classes."""
MOST_CLASSES = 0.5
"""Share of the classes beside one that a batch may have of those of all batches."""
SAMPLERS = ("SequentialSampler", "RandomSampler", "DistributedSampler", "BatchSampler", "BatchSamplerShard")
"""Samplers whose batches have no order of their own."""

Counts = Mapping[int, NDArray[np.int64]]
"""Labels of each class [C] in the batch of a step."""


@dataclass(frozen=True)
class Sorted:
    """Batches of a rank: steps that were looked at, those with labels of one class, classes in all, and shares of pairs
    of equal labels in batches and among all.
    """

    steps: tuple[int, ...]
    single: int
    classes: int
    in_batches: float
    in_all: float


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where no classes were counted."""
    ranks = data_parallel_ranks(run)[:MOST_RANKS]
    counts_by_rank = {rank: _class_counts(run, rank) or _single_classes(run, rank) for rank in ranks}
    if not any(counts_by_rank.values()):
        raise CannotTell("no labels of samples were counted by class", reason="by-design")
    sorted_by_rank: dict[int, Sorted] = {}
    for rank, counts in counts_by_rank.items():
        data = run.env[rank].data if rank in run.env else {}
        sorted_labels = _sorted(counts, ALARM_LEVEL / len(ranks))
        if sorted_labels is not None and _has_order(data, sorted_labels):
            sorted_by_rank[rank] = sorted_labels
    return [_finding(run, sorted_by_rank)] if sorted_by_rank else []


def _class_counts(run: Run, rank: int) -> Counts:
    """Of the steps with a target a sample that counts, and of the number of classes that most have."""
    samples = {step: len(row) for (step, _), row in run.lists("sample_digests", ranks=[rank]).items()}
    rows = {step: row.astype(np.int64) for (step, _), row in run.lists("class_counts", ranks=[rank]).items()}
    rows = {step: row for step, row in rows.items() if len(row) > 2 and 1 < row[1] <= samples.get(step, 0)}
    if not rows:
        return {}
    num_classes = Counter(int(row[0]) for row in rows.values()).most_common(1)[0][0]
    return {step: row[2:] for step, row in sorted(rows.items()) if row[0] == num_classes}


def _single_classes(run: Run, rank: int) -> Counts:
    """Of a cross-entropy with a target a sample, where all targets of each batch are of one class."""
    facts = run.texts("input_facts")
    classes: dict[int, tuple[int, int]] = {}
    for (step, _), row in run.lists("input_values", ranks=[rank]).items():
        values = [
            value for value in input_values(facts.get((step, rank), "[]"), row.tolist()) if value.fact.classes > 2
        ]
        if not values:
            continue
        if len(values) != 1 or values[0].single is None or len(values[0].fact.shape) != 1 or values[0].single < 0:
            return {}
        classes[step] = int(values[0].single), values[0].fact.shape[0]
    numbers = {label: number for number, label in enumerate(sorted({label for label, _ in classes.values()}))}
    counts: dict[int, NDArray[np.int64]] = {}
    for step, (label, size) in sorted(classes.items()):
        counts[step] = np.zeros(len(numbers), dtype=np.int64)
        counts[step][numbers[label]] = size
    return counts


def _sorted(counts: Counts, level: float) -> Sorted | None:
    """What there is to say of the batches of a rank; None where their labels may be drawn independently."""
    counts_TC = np.array([row for row in counts.values() if row.sum() > 1])
    steps = tuple(step for step, row in counts.items() if row.sum() > 1)
    if len(steps) < 2:
        return None
    counts_TC = counts_TC[:, counts_TC.any(0)]
    of_batches_T = counts_TC.sum(1)
    in_batches = _equal_pairs(counts_TC).sum() / (of_batches_T * (of_batches_T - 1)).sum()
    total_C = counts_TC.sum(0)
    in_all = _equal_pairs(total_C).sum() / (total_C.sum() * (total_C.sum() - 1))
    if in_all == 0 or 1 / max(in_batches, in_all) - 1 > MOST_CLASSES * (1 / in_all - 1) or in_all == 1:
        return None
    if log_evidence(counts_TC) < -math.log(level):
        return None
    single = int(np.count_nonzero(counts_TC.max(1) == of_batches_T))
    return Sorted(steps, single, len(total_C), float(in_batches), float(in_all))


def _equal_pairs(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts * (counts - 1)


def log_evidence(counts_TC: NDArray[np.int64]) -> float:
    """Ln of Q / P (see "How it decides") of batches with counts of each class; classes that none has are left out."""
    num_batches, num_classes = counts_TC.shape
    sizes_T, total_C = counts_TC.sum(1), counts_TC.sum(0)
    share = CONCENTRATION / num_classes
    # ln n! as lgamma(n + 1); the arrangements within a batch are the same in Q and in P, and are left out of both
    log_p = _log_factorials(total_C) - math.lgamma(int(total_C.sum()) + 1)
    log_q = float(sum(math.lgamma(int(n) + share) - math.lgamma(share) for n in counts_TC.ravel() if n))
    log_q += num_batches * math.lgamma(CONCENTRATION)
    log_q -= sum(math.lgamma(int(size) + CONCENTRATION) for size in sizes_T)
    return log_q - log_p


def _log_factorials(numbers: NDArray[np.int64]) -> float:
    return float(sum(math.lgamma(int(n) + 1) for n in numbers.ravel()))


def _has_order(data: Mapping[str, Any], labels: Sorted) -> bool:
    """True if nobody drew the classes of a batch on purpose, as far as that can be known."""
    if not data:  # what has no loader may draw as it likes, or make labels itself, which change as the model does
        return labels.single == len(labels.steps) and labels.classes > 2
    return bool(data.get("stream")) or data.get("sampler") in SAMPLERS


def _finding(run: Run, sorted_by_rank: Mapping[int, Sorted]) -> Finding:
    ranks = tuple(sorted(sorted_by_rank))
    labels = sorted_by_rank[ranks[0]]
    data = run.env[ranks[0]].data if ranks[0] in run.env else {}
    looks = f"{counted(len(labels.steps), 'step')} that were looked at"
    location = "" if len(run.ranks) == 1 else f" of {ranks_text(ranks, all_ranks=run.ranks)}"
    if labels.single >= 0.9 * len(labels.steps):
        at = looks if labels.single == len(labels.steps) else f"{labels.single} of {looks}"
        claim = f"Each batch{location} has labels of one class, at {at}, of {labels.classes} classes in all"
    else:
        claim = (
            f"The labels{location} come sorted by class: two of one batch are the same in {labels.in_batches:.0%} of "
            f"pairs, two of all batches in {labels.in_all:.0%} ({looks}, {labels.classes} classes)"
        )
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{claim}{_order_text(data)}.",
        ranks=ranks,
        step_first=labels.steps[0],
        step_last=labels.steps[-1],
        sites=sites_of(labels.steps[0], ranks[:2], phase="loss", names=("cross_entropy",)),
        measured=labels.in_batches,
        expected=labels.in_all,
        unit="share of pairs of labels that are equal",
        false_alarm_rate=ALARM_LEVEL,
        evidence={"kind": "classes", "steps": list(labels.steps[:100]), "single": labels.single},
        next=_advice(data),
    )


def _order_text(data: Mapping[str, Any]) -> str:
    """By whom the data are read, and that they are not shuffled, or not enough."""
    if not data:
        return ""
    name = str(data.get("dataset_type") or "the data set")
    if data.get("shuffles") is True:
        return f": {name} declares to shuffle, and comes sorted by class all the same"
    sampler = f" ({data['sampler']})" if data.get("sampler") and not data.get("stream") else ""
    return f": {name} is read in its order{sampler}, which is sorted by class"


def _advice(data: Mapping[str, Any]) -> tuple[str, ...]:
    if data.get("stream"):
        return ("Shuffle with a buffer of several classes' samples, or mix the files before they are read.",)
    if data.get("shuffles") is True:
        return ("Print the labels of two batches, and the first indices that the sampler yields.",)
    return ("Pass shuffle=True to the DataLoader, or to the sampler, unless classes are meant to come in turn.",)
