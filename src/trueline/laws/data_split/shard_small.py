"""A rank reads the same few samples again and again, while the others read many.

What it finds
-------------
Ranks that have read several times fewer different samples than the others, in as many draws: a last shard that got
the rest of a division, a shard size that is written into the code, a list of files of which one is short, a filter
that left one rank hardly anything.

Why it matters
--------------
Each sample of that rank weighs as many times more as there are fewer of them, and the model learns them by heart.
The rank's loss falls below the others', which looks like luck; a mean over ranks hides even that.

How it decides
--------------
By how many different samples each rank has read, d. Where a rank has an eighth or less of what the median rank has,
suppose that it drew its n samples from at least M different ones, as each rank did that is not such a rank: M is the
fewest that one of these has read. Then all n are among some d of the M with a probability of at most
C(M, d) (d / M)^n, by the union bound over the sets of d; drawing without replacement repeats less. A finding needs
this, times the number of ranks, to be below 1e-6. The factor of eight is there because shards may be unequal for good
reasons: it is no threshold on noise.

Ranks that hold one batch are left to `sample-repeats`. Ranks in different groups of `plan.worker_groups` are not
compared.

What it may miss
----------------
Shards that are less than eight times smaller, or so large that their rank has not come to their end. Samples that are
changed on the fly never repeat. A rank that is meant to read another, small data set is reported: list the ranks that
should agree in `worker_groups`.

Example
-------
Rank 3 has read 8 different samples, 400 times each, since step 0; the others read 961 to 978.

Wrong and right
---------------
Wrong:

```python
shard = documents[rank * 1024 : (rank + 1) * 1024]  # 3,080 documents on four ranks leave 8 to the last
```

Right:

```python
shard = documents[rank::world_size]
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trueline.judge.compared_ranks import Ints
from trueline.judge.stats.distinct import num_distinct
from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.laws.data_split.consumed import Samples, consumed_samples
from trueline.laws.data_split.coverage import require_returns
from trueline.laws.data_split.fresh import FreshSamples
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, ranks_text
from trueline.store.reader import Run

CODE = "shard-small"
CALLS = {"": ("DistributedSampler", "DataLoader")}
QUESTION = "data"
FOLLOWS = FreshSamples()
NEEDS: tuple[str, ...] = ("sample_digests", "epoch")

TIMES_FEWER = 8
"""Factor by which a rank has fewer different samples than the median rank: shards are seldom so unequal on purpose."""


def check(run: Run) -> list[Finding]:
    """A Finding for each declared group of ranks; raises ``CannotTell`` where fewer than two left digests, or nothing
    that is read comes again.
    """
    samples = consumed_samples(run)
    by_rank = _slots_by_worker(samples)
    groups = run.manifest.plan.get("worker_groups") or [samples.ranks]
    findings = [
        finding
        for group in groups
        if (finding := _judge(samples, by_rank, [n for n, rank in enumerate(samples.ranks) if rank in group]))
    ]
    if not findings:
        require_returns(samples)
    return findings


def _slots_by_worker(samples: Samples) -> list[Ints]:
    """N arrays of the slots of each worker, ascending."""
    order = np.argsort(samples.worker, kind="stable")
    ends = np.searchsorted(samples.worker[order], np.arange(1, len(samples.ranks)))
    return np.split(order, ends)


def _judge(samples: Samples, slots_of: Sequence[Ints], group: Sequence[int]) -> Finding | None:
    different = {n: num_distinct(samples.digest[slots_of[n]]) for n in group if len(slots_of[n])}
    if len(different) < 2:
        return None
    few = {n for n, number in different.items() if TIMES_FEWER * number <= np.median([*different.values()])}
    # a rank that holds one batch is `sample-repeats`
    small = [n for n in different if n in few and not _holds_one_batch(samples, slots_of[n])]
    larger = [number for n, number in different.items() if n not in few]
    if not small:
        return None
    log_p = max(log_chance(len(slots_of[n]), different[n], min(larger)) for n in small)
    if log_p + math.log(len(different)) > math.log(ALARM_LEVEL):
        return None
    ranks = tuple(samples.ranks[n] for n in small)
    slots = np.concatenate([slots_of[n] for n in small])
    first = int(samples.step[slots].min())
    largest = max(different[n] for n in small)
    smallest = min(small, key=lambda n: different[n])
    times = len(slots_of[smallest]) // different[smallest]
    low, high = min(larger), max(larger)
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    verb = "has" if len(ranks) == 1 else "have each"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{capitalized(ranks_text(ranks))} {verb} read {counted(largest, 'different sample')}"
        f"{' or fewer' if len(ranks) > 1 else ''}, {'up to ' if len(ranks) > 1 else ''}{times:,} times each, since "
        f"step {first}; the others read {span}.",
        ranks=ranks,
        step_first=first,
        step_last=int(samples.step[slots].max()),
        measured=float(largest),
        expected=float(low),
        unit="different samples",
        false_alarm_rate=ALARM_LEVEL,
        evidence={"kind": "few", "different": {str(samples.ranks[n]): different[n] for n in small}},
        next=(
            f"Print the number of samples, or files, that {ranks_text(ranks)} can read, beside the others'; give "
            "each rank one of every world_size samples, or use a DistributedSampler over all of them.",
            "If ranks are meant to read data sets of their own, list those that should agree in the plan: "
            "worker_groups = [[...], ...].",
        ),
    )


def _holds_one_batch(samples: Samples, slots: Ints) -> bool:
    """True where a worker had, at most steps, the batch of the step before."""
    starts = np.flatnonzero(np.diff(samples.step[slots], prepend=-1))
    batches = [batch.tobytes() for batch in np.split(samples.digest[slots], starts[1:])]
    num_held = sum(batch_before == batch_after for batch_before, batch_after in pairwise(batches))
    return 2 * num_held > len(batches)


def log_chance(drawn: int, different: int, population: int) -> float:
    """Natural log of an upper bound of the probability that ``drawn`` samples out of ``population`` equally likely
    ones, with or without replacement, are among some ``different`` of them.
    """
    if different >= population:
        return 0.0
    sets = math.lgamma(population + 1) - math.lgamma(different + 1) - math.lgamma(population - different + 1)
    return min(sets + drawn * math.log(different / population), 0.0)
