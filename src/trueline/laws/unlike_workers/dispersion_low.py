"""Workers agree more closely than workers that read different samples can.

What it finds
-------------
All workers, or two of them, that compute on the same samples although nothing is bitwise equal, because dropout or
augmentation hides it and samples were not recorded or have different digests. Also workers whose recorded losses are
bitwise equal.

Why it matters
--------------
Workers that read the same samples do the work of one: the gradient is as noisy as that of a smaller batch, and each
epoch costs as many times more as there are copies. The loss curve looks fine, even smoother.

How it decides
--------------
Bets against exchangeable samples and exchangeable pairs of workers win nothing on average while training is healthy,
whatever the distribution; a finding is reported where an e-detector of such bets reaches the height that its share of
the false-alarm budget allows (`plan.false_alarms` expected per 10,000 healthy steps over all checks).

By the per-sample (or per-micro-batch) losses of a step, from two workers on: they are reassigned to the workers at
random (`judge/stats/permutation.py` has the e-value and the source).

- Position by position: workers that read the same samples in the same order have high and low losses at the same
  positions of the batch, however much dropout there is, and no other assignment has. What all batches have in common at
  a position, such as batches sorted by length, is removed before anything is reported. The finding names the ranks
  whose correlation over positions is at least half that of the most correlated two.
- As a whole: if batches are different draws from one pool, the workers' means are as far apart as in a random
  assignment; if they are the same draw in whatever order, much less.

A factor of 2 in variance is allowed for in the latter, since batches that are balanced or normalised as a whole are a
little more similar than chance. Steps at which a worker reads again what only it has read before do not count.

By the workers' values, from three workers on: the distances of all pairs of workers are exchangeable, so that no pair
should be the closest one again and again (`judge/stats/closest_pairs.py`). Distances are looked at in the loss, in
the log gradient norm, in the cosine to the others, and in these together with the norms of parameter groups. A pair is
named only if it is no more than half as far apart as it is from the nearer half of the other workers, persistent
differences removed. Workers that the outlier checks name are left out, and where only the pair is left nothing is
reported: a faulty third worker does not make the other two copies. Of three workers with no known outlier, two that are
close are either copies, or the third is noisy: the finding says so and names all three, unless per-sample losses or
digests of the samples show that the two read different samples; then nothing is reported.

Bitwise equal losses: at three steps or more all workers recorded the same loss, losses change, and they are not rounded
to 16 bits. It is an error if the gradient norms agree too, and an info if they differ: then the loss was averaged
before it was recorded, and checks of the losses cannot see anything.

Since when: the least-squares change point of their distance, with a 95 % interval of steps. The distance is the log
odds of the share of the spread that is between them, less the mean over random assignments, or the mean log distance of
their pairs, less that of all pairs: around 0 before they are copies (`judge/stats/change_point.py`).

Where digests of the samples show the same, `duplicate-data` reports it, and this check does not repeat it.

What it may miss
----------------
With two workers and without per-sample losses, copies that dropout hides cannot be seen: there is nothing to compare
their distance with. Pairs are compared for up to 64 workers of a group. Samples that are augmented on the fly have
different digests, so with four workers or more copies are reported although digests differ; not position by position
where only losses of micro-batches are known, as these may be of different kinds (those of a GAN).
Batches that are balanced on purpose (the same number of each class in each batch, stratified diffusion times) may be
so much more similar than a random draw that all workers are reported.

Example
-------
Ranks 0-3 have high and low losses at the same positions of their batches since step 0: correlation 0.91 (95 %:
0.88-0.93).

Wrong and right
---------------
Wrong:

```python
shard = int(os.environ["LOCAL_RANK"])  # counts within a node: the nodes read the same shards
dataset = RandomCrops(load(f"shard-{shard}.pt"))
```

Right:

```python
shard = dist.get_rank()
dataset = RandomCrops(load(f"shard-{shard}.pt"))
```
"""

from __future__ import annotations

import math

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, sites_of
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.laws.data_split.repeats_in_step import duplicates_cover
from trueline.laws.unlike_workers.comparable import comparable_groups
from trueline.laws.unlike_workers.copies import (
    AS_WHOLE,
    BY_PLACE,
    EQUAL_STEPS,
    CopySet,
    copies_among,
    differ_by_digest,
    is_paired,
    pair_columns,
    require_enough,
)
from trueline.laws.unlike_workers.quiet_sets import QuietPairs
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import capitalized, ranks_text, since_text
from trueline.store.reader import Run

CODE = "dispersion-low"
CALLS = {"": ("DistributedSampler", "DataLoader")}
QUESTION = "workers"
NEEDS: tuple[str, ...] = (
    "loss",
    "grad_norm",
    "cosine_others",
    "group_grad_norms",
    "group_cosine_others",
    "part_losses",
    "sample_digests",
    "tokens",
)

_EQUAL_NORMS = 1e-3
"""Relative difference of gradient norms below which workers with equal losses did the same: rounding, in other orders,
of half-precision gradients."""


FOLLOWS = QuietPairs()


def check(run: Run) -> list[Finding]:
    """Findings of workers that are too close together; raises ``CannotTell`` with too few steps or workers."""
    findings = judge(series_of(run), alarm_budget_of(run))
    return [
        finding
        for finding in findings
        if finding.severity == "info" or not duplicates_cover(run, finding, finding.ranks)
    ]


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """Findings of workers of ``series`` that are too close together; raises ``CannotTell`` as ``check`` does."""
    groups = comparable_groups(series)
    findings: list[Finding] = []
    for members in groups:
        finding = _equal_losses_finding(series, members)
        if finding is not None:
            # Equal losses are as close as can be, and pairs of them have no distance to compare.
            findings.append(finding)
            continue
        findings += [_finding(series, copy_set) for copy_set in copies_among(series, budget, members)]
    if not findings:
        pairs = [members for members in groups if is_paired(members)]
        num_steps_of = {members: max(len(rows) for _, rows, _ in pair_columns(series, members)) for members in pairs}
        require_enough(series, budget, num_steps_of)
    return findings


def _equal_losses_finding(series: WorkerSeries, members: tuple[int, ...]) -> Finding | None:
    """A Finding where the losses of all members are bitwise equal at steps that resolve more."""
    loss_TM = series.loss[:, list(members)]
    equal_T = np.isfinite(loss_TM).all(axis=1) & (loss_TM == loss_TM[:, :1]).all(axis=1)
    rows = np.flatnonzero(equal_T)
    values = loss_TM[rows, 0]
    resolved = _are_finely_resolved(values)
    # A loss that stays at one value (0, or a cap) is equal on all workers by itself.
    if len(np.unique(values[resolved])) < EQUAL_STEPS:
        return None
    rows = rows[resolved]
    ranks = tuple(series.ranks[n] for n in members)
    norms_RM = series.log_norm[rows][:, list(members)]
    norm_ranges = np.max(norms_RM, axis=1) - np.min(norms_RM, axis=1)
    severity, norm_clause, advice = _judge_norm_ranges(norm_ranges[np.isfinite(norm_ranges)])
    first, last = int(series.steps[rows[0]]), int(series.steps[rows[-1]])
    return Finding(
        code=CODE,
        severity=severity,
        claim=f"The losses of {ranks_text(ranks)} are bitwise equal at {len(rows)} steps from {first} to {last}"
        f"{norm_clause}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="loss", names=("all",)),
        measured=0.0,
        expected=None,
        unit="difference between the losses of workers",
        false_alarm_rate=0.0,
        evidence={
            "statistic": "bitwise equal losses",
            "num_steps": len(rows),
            "crossed_step": int(series.steps[rows[EQUAL_STEPS - 1]]),
            "compared": list(ranks),
        },
        next=(advice,),
    )


def _judge_norm_ranges(norm_ranges: Floats) -> tuple[Severity, str, str]:
    """Severity, a clause, and what to do, from the ranges of log gradient norms at steps of equal losses."""
    if not len(norm_ranges):
        return "warning", "", "Look at the samples that the ranks read: are they the same?"
    middle = float(np.median(norm_ranges))
    if middle <= _EQUAL_NORMS:
        return "error", ", and their gradient norms agree", "Give each rank its own shard: a DistributedSampler."
    return (
        "info",
        f", while their gradient norms differ by {math.expm1(middle):.1%}",
        "Record the loss before it is averaged over workers (watch.loss); checks of losses cannot see anything now.",
    )


def _are_finely_resolved(values: Floats) -> Bools:
    """Mask of the values that need more than the 11 significant bits of float16, the finer 16-bit format near 1."""
    mantissa, _ = np.frexp(values)
    scaled = mantissa * 2**11
    return (scaled != np.round(scaled)) & np.isfinite(values)


def _finding(series: WorkerSeries, copy_set: CopySet) -> Finding:
    claim, expected, unit = _claim_and_unit(copy_set)
    ranks = tuple(sorted(copy_set.ranks + copy_set.suspect_ranks))
    return Finding(
        code=CODE,
        severity="warning",
        claim=claim,
        ranks=ranks,
        step_first=copy_set.first,
        step_last=copy_set.last,
        sites=sites_of(copy_set.first, copy_set.ranks[:2], phase="loss", names=("all",)),
        measured=copy_set.measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=copy_set.false_alarm_rate,
        evidence={
            "statistic": copy_set.statistic,
            "interval": None if copy_set.interval is None else list(copy_set.interval),
            "log_height": copy_set.alarm.log_height,
            "threshold": copy_set.alarm.threshold,
            "crossed_step": copy_set.crossed,
            "onset_interval": list(copy_set.onset_interval),
            "undecided": bool(copy_set.suspect_ranks),
        },
        next=_advice(series, copy_set),
    )


def _advice(series: WorkerSeries, copy_set: CopySet) -> tuple[str, ...]:
    worker, twin = (series.ranks.index(rank) for rank in copy_set.ranks[:2])
    pair = ranks_text(copy_set.ranks[:2])
    if differ_by_digest(series, worker, twin, first=copy_set.first, last=copy_set.last):
        return (
            f"The inputs of {pair} differ by digest: if they are made of the same rows (augmented, or behind a prefix "
            "of each rank's own), give each rank its own shard.",
            f"If the rows differ, look for what else {pair} share and other ranks do not: a cache, labels, a loss.",
        )
    return (
        f"Compare the samples that {pair} read at step {copy_set.first}: are they the same?",
        "Give each rank its own shard: a DistributedSampler, or one shuffle seed for all ranks and an offset by rank.",
        *(
            f"If they are not, {ranks_text(copy_set.suspect_ranks)} is the rank to look at."
            for _ in copy_set.suspect_ranks
        ),
    )


def _claim_and_unit(copy_set: CopySet) -> tuple[str, float, str]:
    """The claim, the expected value, and the unit of both."""
    ranks, onset_text = ranks_text(copy_set.ranks), since_text(copy_set.first, copy_set.onset_interval)
    low, high = copy_set.interval or (math.nan, math.nan)
    interval = f"(95 %: {low:.2f}-{high:.2f})"
    if copy_set.statistic == BY_PLACE:
        claim = (
            f"{capitalized(ranks)} have high and low losses at the same positions of their batches {onset_text}: "
            f"correlation {copy_set.measured:.2f} {interval}."
        )
        return claim, 0.0, "correlation of losses at equal positions of the batches"
    if copy_set.statistic == AS_WHOLE:
        claim = (
            f"The losses of {ranks} are {copy_set.measured:.2f} times {interval} as far apart as different samples "
            f"would be, {onset_text}."
        )
        return claim, 1.0, "standard deviations between workers, in those that the spread within workers explains"
    distance = f"{copy_set.measured:.2f} times as far from each other as from other ranks"
    if copy_set.measured == 0:
        distance = "equal, while other ranks differ,"
    claim = f"{capitalized(ranks)} are {distance} {onset_text} ({copy_set.statistic})"
    if copy_set.suspect_ranks:
        suspects = ranks_text(copy_set.suspect_ranks)
        claim += f"; of three workers it is undecided whether they are copies or {suspects} is faulty"
    claim += "."
    return claim, 1.0, "distances between the workers, in that to other workers"
