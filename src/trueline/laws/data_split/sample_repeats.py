"""A rank reads the same samples again, in the same order.

What it finds
-------------
Batches that come k times, each a fixed number of batches after the time before: a stream (`IterableDataset`) that is
not split between the k workers of its loader, each of which then reads all of it. Also a restart of the job that
reads, from its first sample on, what the rank had read before: the weights were loaded and the sampler was not, so the
epoch starts again in its middle. And one batch at step after step: a rank whose reader hangs while the others go on, or
a loader that is begun anew at every step, of which only the first batch is ever read.

Why it matters
--------------
Training on the same samples twice in a row is not another epoch: the second update of a batch fits noise, an epoch
takes k times as long, and after a restart the samples at the end of the epoch are never read.

How it decides
--------------
By the order of digests. That samples recur is no evidence, as data sets hold equal rows and sampling with replacement
repeats them; that they recur in order is. The null hypothesis is that what a rank reads within an epoch is
exchangeable.

Repeats: go through the batches (as many of a step as there are micro-batches) in order. If one comes m - 1 times more,
these are under the null hypothesis a random choice of the R places not known yet, and the probability that each falls
on one of the m - 1 places that are 1, 2, ... lags later is (m - 1)/R at most: the test martingale of `duplicate-data`,
for lags of 1 to 16. A finding needs four rounds or more in which new batches come, nine tenths of them k times: a small
data set that is read again as a whole, epoch after epoch in one order or not, is no fault, and neither is training on
one batch throughout.

Restarts: the first samples of the start are those of an earlier stretch, in that order, with a probability that
shuffles of what the start read give (a product of count/left), times the number of places where a stretch may begin.
A start that has the weights of the step from which it
reads again, or the loss of that step, goes on from its checkpoint, and is no fault. A whole pass over the data set,
each sample once, is none either: one that was complete before, by what the loader
declares, or by what the rank itself had read several times over.

Both together have a false-alarm rate of 1e-6 a Run, split over ranks, lags and restarts.

One batch is held where eight steps in a row or more read it. Training on one batch on purpose is no fault, so that it
is reported only where something contradicts it: within one epoch, or throughout where no loader shows epochs, where
another rank reads a new batch at each of these steps; or where each step begins the loader again, which declares to
shuffle more rows than a batch has.

Repeats are an error where the loader declares a stream and k workers; else a warning, for some algorithms train on a
batch several times on purpose. A loss with ratios of new to old probabilities is made for several passes over a
rollout, so that its repeats are left alone. Where all repeats of a batch are in one step (two passes over it before an
update), it is reported only if the loader declares that.

What it may miss
----------------
Loader workers that each shuffle the stream differently: all samples come k times, at no fixed distance. Samples that
are changed on the fly are never equal. Lags above 16. A restart that continues from a wrong position, unless that was
read before. A batch that all ranks hold, or that is held within accumulated steps. A data set in file order whose equal
rows follow each other regularly is reported as if the loader repeated them.

Example
-------
Ranks 0-3 read each batch 2 times in a row, since step 0: 87 of 174 batches are repeats.

Wrong and right
---------------
Wrong:

```python
class Stream(IterableDataset):
    def __iter__(self):
        yield from self.rows  # with num_workers=2 each of the two yields all rows
```

Right:

```python
class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from itertools.islice(self.rows, first, None, stride)
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.judge.series.declared_sampling import SPLIT_STREAM, declared_sampling
from trueline.judge.series.rewound import rewound_to
from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.laws.data_split.fresh import FreshSamples
from trueline.laws.data_split.repeats_in_order import (
    Batches,
    HeldBatch,
    RegularRepeat,
    Reread,
    changes_every_step,
    find_held_batch,
    find_regular_repeat,
    find_reread,
    read_batches,
)
from trueline.schema.columns.loss_values import LOG_SIGMOID, LikelihoodRatio
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, ranks_text
from trueline.store.reader import Run

CODE = "sample-repeats"
CALLS = {"": ("DistributedSampler", "DataLoader")}
FOLLOWS = FreshSamples()
NEEDS: tuple[str, ...] = ("sample_digests", "target_digests", "epoch", "num_micro", "likelihood_ratios")
QUESTION = "repeats"
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of repeats and of restarts; raises ``CannotTell`` without digests of samples."""
    batches_of = read_batches(run, data_parallel_ranks(run))
    if not batches_of:
        raise CannotTell("no rank left digests of its samples")
    num_starts = sum(len(starts) for starts in batches_of.values())
    makes_passes = _has_ratios(run)
    repeats: defaultdict[tuple[int, int], dict[int, RegularRepeat]] = defaultdict(dict)
    rereads: defaultdict[tuple[int, int], dict[int, Reread]] = defaultdict(dict)
    for rank, starts in batches_of.items():
        for batches in starts:
            repeat = None if makes_passes else find_regular_repeat(batches, tests=2 * num_starts)
            if repeat is not None and rank not in repeats[repeat.times, repeat.lag]:
                repeats[repeat.times, repeat.lag][rank] = repeat
        for number in range(1, len(starts)):
            reread = find_reread(starts[:number], starts[number], tests=2 * num_starts)
            if reread is None or _goes_on_from(run, rank, reread):
                continue
            if not _finished_pass(run, rank, starts[:number], reread):
                rereads[reread.first, reread.like][rank] = reread
    findings = [_repeat_finding(run, repeat_of) for repeat_of in repeats.values() if repeat_of]
    return [
        *(finding for finding in findings if finding is not None),
        *_held_findings(run, batches_of),
        *(_reread_finding(run, reread_of) for reread_of in rereads.values()),
    ]


def _has_ratios(run: Run) -> bool:
    """True where a loss has ratios of new to old probabilities: these are for several passes over one rollout."""
    ratios = (
        ratio for row in run.lists("likelihood_ratios").values() for ratio in LikelihoodRatio.from_row(row.tolist())
    )
    return any(ratio.kind != LOG_SIGMOID for ratio in ratios)


def _goes_on_from(run: Run, rank: int, reread: Reread) -> bool:
    """True where the start goes on from the checkpoint of the step from which it reads again: by its weights, else by
    its first loss.
    """
    if (step := rewound_to(run, rank, reread.first)) is not None:
        was_killed = (reread.first - 1, rank) not in run.lists("closing_digests", ranks=[rank])
        # after a kill the data may be at the checkpoint where the weights are those of the beginning
        return step == reread.like or (was_killed and step == run.steps[0])
    loss_TN, measured_TN = run.pivot("loss")
    column, rows = run.ranks.index(rank), np.searchsorted(run.steps, [reread.like, reread.first])
    first, again = loss_TN[rows, column]
    return bool(measured_TN[rows, column].all()) and math.isclose(first, again, rel_tol=_SAME_LOSS)


_SAME_LOSS = 1e-6
"""Share of a loss that the order of sums in float32 may change: the same weights read the same samples."""


def _finished_pass(run: Run, rank: int, before: Sequence[Batches], reread: Reread) -> bool:
    """True where the rank read a whole pass over its data from ``reread.like`` to the restart."""
    steps = np.concatenate([batches.steps_of_samples for batches in before])
    digests = np.concatenate([part for batches in before for part in batches.digests])
    stretch = digests[steps >= reread.like]
    declared = declared_sampling(run.env, [rank]).by_rank[rank]
    length, parts = declared.get("dataset_len"), declared.get("num_replicas") or 1
    if isinstance(length, int):
        batch, one_pass = int(np.bincount(steps - steps[0]).max()), length // parts
        # As many samples as a pass has are one only where each is new: else the stretch is parts of two passes, of
        # other orders.
        num_new = len(np.unique(stretch)) + batch
        return len(stretch) + batch > one_pass and num_new > min(one_pass, len(np.unique(digests)))
    # without a declared length, a stretch that holds all that was ever read is a pass
    earlier = digests[steps < reread.like]
    return bool(len(earlier)) and len(np.unique(stretch)) == len(np.unique(digests))


def _repeat_finding(run: Run, repeat_of: dict[int, RegularRepeat]) -> Finding | None:
    """Finding on regular repeats by rank; None where all of them are within steps, as a loop may mean them."""
    ranks, repeats = tuple(sorted(repeat_of)), repeat_of.values()
    declared = declared_sampling(run.env, ranks)
    repeat = repeat_of[ranks[0]]
    loaders = declared.all_equal("num_workers")
    is_declared = all(declared.by_rank[rank] for rank in ranks)
    by_loader = declared.is_stream and isinstance(loaders, int) and loaders > 1 and loaders % repeat.times == 0
    if all(repeat.within_steps for repeat in repeats) and not by_loader:
        return None
    how = "in a row" if repeat.lag == 1 else f"{repeat.lag} batches apart"
    first, last = min(repeat.first for repeat in repeats), max(repeat.last for repeat in repeats)
    repeated, batches = sum(repeat.repeated for repeat in repeats), sum(repeat.batches for repeat in repeats)
    why = f", as many as its loader has workers ({loaders})" if by_loader and loaders == repeat.times else ""
    return Finding(
        code=CODE,
        severity="error" if by_loader else "warning",
        claim=f"{capitalized(ranks_text(ranks))} {'reads' if len(ranks) == 1 else 'read'} each batch {repeat.times} "
        f"times {how}{why}, since step {first}: {repeated:,} of {batches:,} batches are repeats.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=repeated / batches,
        expected=0.0,
        unit="fraction of batches that are repeats",
        false_alarm_rate=ALARM_LEVEL,
        evidence={
            "kind": "by-loader-workers" if by_loader else "handed-out-again" if is_declared else "in-order",
            "times": repeat.times,
            "lag_batches": repeat.lag,
            "loader_workers": loaders,
        },
        next=(SPLIT_STREAM,)
        if declared.is_stream
        else (
            "Look for what hands out each batch several times: loader workers that each read everything, rows that "
            "were copied, a loop that trains on a batch again.",
        ),
    )


def _held_findings(run: Run, batches_of: Mapping[int, Sequence[Batches]]) -> list[Finding]:
    """Findings on ranks that hold one batch, together where the loader is begun anew, else each by itself."""
    stuck: dict[int, HeldBatch] = {}
    anew: dict[int, HeldBatch] = {}
    for rank, starts in batches_of.items():
        stretches = (stretch for batches in starts if (stretch := find_held_batch(batches)))
        stretch = max(stretches, key=lambda stretch: stretch.batches, default=None)
        if stretch is None:
            continue
        peers = (batches for peer in batches_of if peer != rank for batches in batches_of[peer])
        if stretch.anew and _shuffles_more(run, rank):
            anew[rank] = stretch
        elif stretch.anew or _labels_change(run, rank, stretch):
            continue
        elif any(changes_every_step(batches, stretch) for batches in peers):
            stuck[rank] = stretch
    groups = [*({rank: stretch} for rank, stretch in stuck.items()), anew]
    return [_held_finding(run, held_of) for held_of in groups if held_of]


def _labels_change(run: Run, rank: int, stretch: HeldBatch) -> bool:
    """True where the labels of the rank were seen and change meanwhile: its inputs are blank then, no batch is held."""
    rows = run.lists("target_digests", ranks=[rank])
    labels = {row.tobytes() for (step, _), row in rows.items() if stretch.first <= step <= stretch.last and len(row)}
    return len(labels) > 1


def _shuffles_more(run: Run, rank: int) -> bool:
    """True where the rank's loader declares to shuffle, and a part with more rows than a batch has."""
    facts = declared_sampling(run.env, [rank]).by_rank[rank]
    length, batch = facts.get("dataset_len"), facts.get("batch_size")
    shuffles = facts.get("shuffle") is True or facts.get("sampler") == "RandomSampler"
    if not shuffles or not isinstance(length, int) or not isinstance(batch, int):
        return False
    return length // (facts.get("num_replicas") or 1) > batch


def _held_finding(run: Run, held_of: Mapping[int, HeldBatch]) -> Finding:
    ranks, stretches = tuple(sorted(held_of)), held_of.values()
    first, last = min(stretch.first for stretch in stretches), max(stretch.last for stretch in stretches)
    batches = max(stretch.batches for stretch in stretches)
    anew = held_of[ranks[0]].anew
    subject, reads = capitalized(ranks_text(ranks)), "reads" if len(ranks) == 1 else "read"
    how = (
        f"{'begins' if len(ranks) == 1 else 'begin'} the loader again at every step and {reads} its first batch alone"
        if anew
        else f"{reads} one batch again and again, while others read new ones"
    )
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{subject} {how}: {counted(batches, 'step')} from step {first} to {last}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=float(batches),
        expected=1.0,
        unit="steps in a row with one batch",
        evidence={"kind": "held", "anew": anew},
        next=(
            "Make the iterator of the loader once, before the loop over steps: next(iter(loader)) makes a new one."
            if anew
            else f"Look at what feeds rank {ranks[0]} from step {first} on: a reader that hangs or fails, whose last "
            "batch is used again.",
        ),
    )


def _reread_finding(run: Run, reread_of: dict[int, Reread]) -> Finding:
    ranks, rereads = tuple(sorted(reread_of)), reread_of.values()
    reread = reread_of[ranks[0]]
    samples, read = (sum(getattr(reread, name) for reread in rereads) for name in ("samples", "read"))
    is_declared = all(run.env[rank].data.get("dataset_len") is not None for rank in ranks if rank in run.env)
    return Finding(
        code=CODE,
        severity="error" if is_declared else "warning",
        claim=f"After the restart at step {reread.first}, {ranks_text(ranks)} "
        f"{'reads' if len(ranks) == 1 else 'read'} again what start {reread.like_start} had read from step "
        f"{reread.like} on, in the same order: {samples} of {counted(read, 'sample')}, up to step {reread.last}."
        f"{_skipped_text(run, reread)}",
        ranks=ranks,
        step_first=reread.first,
        step_last=max(reread.last for reread in rereads),
        sites=sites_of(reread.first, ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=float(samples),
        expected=0.0,
        unit="samples that are read again in the same order",
        false_alarm_rate=ALARM_LEVEL,
        evidence={"kind": "restarted", "like_step": reread.like, "restart": reread.first},
        next=(
            "Save the position of the data with the checkpoint and go on from it: a stateful sampler or loader "
            "(torchdata's StatefulDataLoader), or skip the batches that were read (Accelerate: skip_first_batches).",
            "If the data was meant to start again, use another shuffle: set_epoch, or another seed.",
        ),
    )


def _skipped_text(run: Run, reread: Reread) -> str:
    """Says that as many batches were left out as updates had been made, where an update reads several."""
    micro_TN, measured_TN = run.pivot("num_micro")
    before_T = run.steps < reread.first
    num_micro = np.unique(micro_TN[before_T][measured_TN[before_T]])
    begin = max((start for start in [0, *run.restarts] if start < reread.first), default=0)
    updates = {reread.first - begin, reread.first}
    if len(num_micro) != 1 or num_micro[0] < 2 or not reread.batches_before or reread.batches_before not in updates:
        return ""
    return (
        f" {reread.batches_before} micro-batches were skipped, as many as there had been updates, and an update reads "
        f"{int(num_micro[0])}."
    )
