"""Epochs have one order of samples, though the sampler shuffles.

What it finds
-------------
A `DistributedSampler` whose `set_epoch` is never called, a generator that is seeded anew for each epoch, a loader that
is made again with one seed, a stream that shuffles with one seed: each epoch has the batches of the one before.

Why it matters
--------------
The same samples stand together in every batch. The noise of batches, which shuffling is for, does not average out over
epochs, and a model overfits earlier. Nothing else shows it: all ranks share it.

How it decides
--------------
Only where sampler or stream declare that they shuffle, or that they are told the epoch. Two neighbouring epochs of a
start of the job are compared place by place, in the first 4,096 samples of a rank. Samples that either holds twice are
left out. c of the others are in both, k of them at one place. Epochs are alike where k is at least 0.9 c.

If the second epoch were a shuffle, each set of k samples would stand at its old places with probability (D - k)!/D! of
D places at most, and there are at most D!/(k! (D - k)!) such sets: k or more stand there with probability 1/k! at most.
That bound is multiplied over the epochs where all are alike, and must be below 1e-6, shared among ranks and pairs.

Where values tell nothing, as an augmentation changes them, what the order is drawn from does: a sampler of torch that
begins two epochs with one seed and one number of the epoch, or with one state of its generator, gives both one order.
Of other samplers the first 256 indices are compared that they draw in an epoch, or all of one that ended with 32 or
more, which two shuffles have in one order once in 1e35. That is looked at in the first 8 epochs, and is exact.

Epochs of one step are left alone (see sample-repeats), and so is what lies on both sides of a restart.

What it may miss
----------------
Loaders that are not of torch; streams that do not say that they shuffle; a
data set of so few samples that a shuffle may give one order by chance.

Example
-------
Epochs 0 to 5 have one order of samples on all ranks, and DistributedSampler declares to shuffle.

Wrong and right
---------------
Wrong:

```python
for epoch in range(epochs):
    for batch in loader:  # with sampler=DistributedSampler(data)
        ...
```

Right:

```python
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        ...
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import MOST_RANKS, Ints, data_parallel_ranks, sites_of
from trueline.judge.series.drawn_indices import index_passes
from trueline.judge.series.epochs import Digests, Epoch, epochs_of
from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "epochs-alike"
CALLS = {"": ("DistributedSampler", "DataLoader")}
QUESTION = "repeats"
NEEDS: tuple[str, ...] = ("sample_digests", "epoch")
ACROSS_RANKS = False

ALIKE = 0.9
"""Share of the samples of both epochs that stand at one place, from which on these are alike."""


@dataclass(frozen=True)
class Pair:
    """Two neighbouring epochs of a rank: ``common`` samples are in both and once in each, ``at_one_place`` of
    them at one place; ``state`` is what both orders are drawn from, where that is known and one.
    """

    first: Epoch
    second: Epoch
    common: int
    at_one_place: int
    state: str

    @property
    def alike_by_values(self) -> bool:
        """True where samples tell that the order is one, whether or not that may be chance."""
        return self.common > 0 and self.at_one_place >= ALIKE * self.common

    @property
    def alike_by_state(self) -> bool:
        """True where what the order is drawn from is one, and no sample contradicts that."""
        return bool(self.state) and (self.common == 0 or self.alike_by_values)

    @property
    def log_chance(self) -> float:
        """Ln of a bound of the probability that a shuffle leaves as many samples at their place."""
        return -math.lgamma(self.at_one_place + 1)


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where fewer than two epochs were seen."""
    ranks = data_parallel_ranks(run)[:MOST_RANKS]
    data = {rank: run.env[rank].data for rank in ranks if rank in run.env}
    if not any(data.values()):
        raise CannotTell("no DataLoader of torch was gone through")
    shuffled = [rank for rank in ranks if data.get(rank, {}).get("shuffles", data.get(rank, {}).get("shuffle")) is True]
    if not shuffled:
        return []
    pairs_by_rank = {rank: _pairs(epochs_of(run, rank), _orders(run, rank)) for rank in shuffled}
    if not any(pairs_by_rank.values()):
        raise CannotTell("no two epochs were seen in which samples were trained on", reason="by-design")
    alike: dict[int, list[Pair]] = {}
    log_chance = 0.0
    for rank, pairs in pairs_by_rank.items():
        # two tests a rank: all of its pairs together, and each pair by itself
        alike_pairs, log_of_rank = _alike(pairs, tests=2 * len(shuffled))
        if alike_pairs:
            alike[rank] = alike_pairs
            log_chance = min(log_chance, log_of_rank)
    return [_finding(run, alike, log_chance, pairs_by_rank)] if alike else []


def _orders(run: Run, rank: int) -> Sequence[str]:
    """Of each epoch of a rank what its order is drawn from, else a digest of its first indices; '' of neither."""
    states, passes = run.env[rank].data.get("orders", ()), index_passes(run, rank)
    orders = [index_pass.order for index_pass in passes]
    return [state or order for state, order in zip_longest(states, orders, fillvalue="")]


def _pairs(epochs: Sequence[Epoch], orders: Sequence[str]) -> list[Pair]:
    """Neighbouring epochs of one start, of two steps or more."""
    pairs: list[Pair] = []
    for first, second in pairwise(epochs):
        if first.start != second.start or min(first.num_steps, second.num_steps) < 2:
            continue
        states = {orders[epoch.number] if epoch.number < len(orders) else "" for epoch in (first, second)}
        pairs.append(
            Pair(first, second, *_places(first.digests, second.digests), *(states if len(states) == 1 else [""]))
        )
    return pairs


def _places(first_D: Digests, second_D: Digests) -> tuple[int, int]:
    """Samples that are in both, once in each, and how many of them stand at one place."""
    (first, place_of_first), (second, place_of_second) = _once(first_D), _once(second_D)
    common, in_first, in_second = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return len(common), int(np.count_nonzero(place_of_first[in_first] == place_of_second[in_second]))


def _once(samples_D: Digests) -> tuple[Digests, Ints]:
    """The samples that are there once, ascending, and their places."""
    values, positions, counts = np.unique(samples_D, return_index=True, return_counts=True)
    return values[counts == 1], positions[counts == 1]


def _alike(pairs: Sequence[Pair], *, tests: int) -> tuple[list[Pair], float]:
    """Pairs that are alike and by more than chance, and ln of the bound of that; -inf of what is exact."""
    by_state = [pair for pair in pairs if pair.alike_by_state]
    if by_state:
        return [pair for pair in pairs if pair.alike_by_state or pair.alike_by_values], -math.inf
    by_values = [pair for pair in pairs if pair.alike_by_values]
    total = sum(pair.log_chance for pair in by_values)
    # multiplied only where all are alike: the product over pairs picked for being alike is no bound
    if by_values and len(by_values) == len(pairs) and total <= math.log(ALARM_LEVEL / tests):
        return by_values, total
    each_level = math.log(ALARM_LEVEL / (tests * max(len(pairs), 1)))
    single = [pair for pair in by_values if pair.log_chance <= each_level]
    return single, min((pair.log_chance for pair in single), default=0.0)


def _finding(run: Run, alike: dict[int, list[Pair]], log_chance: float, all_pairs: dict[int, list[Pair]]) -> Finding:
    ranks = tuple(sorted(alike))
    pairs = max(alike.values(), key=len)
    of_rank = next(all_pairs[rank] for rank in ranks if alike[rank] is pairs)
    data = run.env[ranks[0]].data
    exact = log_chance == -math.inf
    by_values = any(pair.alike_by_values for pair in pairs)
    state = next((pair.state for pair in pairs if pair.state), "")
    at_start = f" (each begins with {state})" if state.startswith("seed") else ""
    location = ranks_text(ranks, all_ranks=run.ranks)
    shuffler = "its stream" if data.get("stream") else str(data.get("sampler") or "the sampler")
    claim = (
        f"{_epochs_text(pairs, of_rank)} one order of samples on {location}{at_start}, and {shuffler} declares to "
        "shuffle."
    )
    return Finding(
        code=CODE,
        severity="warning",
        claim=claim,
        ranks=ranks,
        step_first=pairs[0].second.first,
        step_last=int(run.steps[-1]),
        sites=sites_of(pairs[0].second.first, ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=len(pairs) / len(of_rank),
        expected=0.0,
        unit="share of epochs in the order of the one before",
        false_alarm_rate=0.0 if exact else ALARM_LEVEL,
        evidence={
            "kind": "same-values" if by_values else "same-state",
            "epochs": [[pair.first.number, pair.second.number] for pair in pairs[:100]],
            "samples_at_one_place": sum(pair.at_one_place for pair in pairs),
            "samples_of_both": sum(pair.common for pair in pairs),
        },
        next=_advice(data, state),
    )


def _epochs_text(pairs: Sequence[Pair], all_pairs: Sequence[Pair]) -> str:
    if len(pairs) == len(all_pairs):
        return f"Epochs {pairs[0].first.number} to {pairs[-1].second.number} have"
    return f"{counted(len(pairs), 'epoch')} of {len(all_pairs) + 1} and the one before each have"


def _advice(data: dict[str, Any], state: str) -> tuple[str, ...]:
    if state.startswith("seed") or "num_replicas" in data:
        return (
            "Call sampler.set_epoch(epoch) before the loop over each epoch: loader.set_epoch of a loader that "
            "Accelerate has prepared, engine.training_dataloader.data_sampler.set_epoch of DeepSpeed's.",
        )
    if data.get("stream"):
        return ("Shuffle the stream with another seed in each epoch: seed + epoch, by its set_epoch where it has one.",)
    return (
        "Seed the generator of the sampler once, before the first epoch: look for torch.manual_seed, a Generator or a "
        "DataLoader that is made anew with the same seed in the loop over epochs.",
    )
