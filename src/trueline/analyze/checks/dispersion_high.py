"""The workers differ from each other permanently, by more than the samples in their batches explain.

What it finds
-------------
Workers whose losses, or gradient norms, keep their distance and their order: each rank reads a data mixture of its
own, a language, a length bucket, or computes with settings of its own. No single worker needs to stand out. It says by
how much the workers are further apart than they would be if all drew from one pool.

Why it matters
--------------
The mean over workers is then an average over mixtures in fixed proportions that nobody chose, the noise of the update
is larger than the batch size suggests, and checks for a single outlier find nothing, because every worker is one.

How it decides
--------------
It bets that what set the workers apart at earlier steps sets them apart at this one. If workers are exchangeable, each
step may be swapped between them without changing its probability, whatever the distribution, and the bets win nothing
in the mean (`analyze/stats/persistence.py` has the e-value and the source). It alarms when an e-detector of these bets
reaches the height that its share of the false-alarm budget allows (`plan.false_alarms` expected per 10,000 healthy
steps over all checks). Batches that are alike within themselves but for no worker in particular, such as buckets of
length that are dealt out anew at every step, do not win these bets.

Where one worker alone is unlike the others, the outlier checks report it: with three workers or more the alarm must
still stand after the worker that is furthest away is left out. Fixed shards keep small differences of their own from
one epoch to the next; what the number of distinct samples in a shard explains is allowed for.

By how much: where per-sample losses (or those of micro-batches) were recorded, the standard deviation between workers
over what the spread within workers explains, with a 95 % interval; otherwise over the spread between workers that is
left once their lasting differences are taken out. It is a warning from 1.1 times on, and an info below, where the noise
of the update is less than a fifth larger.

As an info it also reports losses that are alike inside each worker's batch without any lasting difference: then
re-dealing the samples over the workers at random makes the workers more alike than they are
(`analyze/stats/permutation.py`), by more than a factor of 2 in variance, which neighbouring pieces of documents
explain. That may be intended: buckets of length, several answers to one prompt. Statistics that take samples as
independent are then too confident.

What it may miss
----------------
Workers that each read documents from end to end differ for as long as a document lasts: then evidence is divided by how
long their losses stay correlated (`analyze/stats/autocorrelation.py`), and lasting differences are found later.
Documents that last longer than a 40th of the Run may still be reported. Workers in different groups of
`plan.worker_groups` are not compared. Differences that come and go within a few steps. With two workers every
difference is one worker's as much as both's: then only losses are looked at here, the outlier checks say the same about
one of them, and each step can win at most ln 2.

Example
-------
The losses of ranks 0-7 differ lastingly since step 12: they are 2.3 times (95 %: 2.1-2.5) as far apart as the spread
within workers explains.

Wrong and right
---------------
Wrong:

```python
files = sorted(root.glob("*/*.parquet"))  # a folder a language
share = len(files) // world_size
mine = files[rank * share : (rank + 1) * share]  # each rank reads its own languages
```

Right:

```python
files = sorted(root.glob("*/*.parquet"))
random.Random(0).shuffle(files)
mine = files[rank::world_size]
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trueline.analyze.evidence import Floats, Ints, sites_of
from trueline.analyze.stats import permutation, persistence
from trueline.analyze.stats.alarm_budget import Promise, promise_of
from trueline.analyze.stats.alarms import Alarm, alarm_of, steps_needed
from trueline.analyze.stats.autocorrelation import Memory
from trueline.analyze.stats.change_point import alarm_onset
from trueline.analyze.stats.exchangeability import scores
from trueline.analyze.workers.comparable import (
    alike_groups,
    compared_among,
    memory_among,
    num_part_detectors,
    parts_alarm,
    parts_of,
    whole_alarm,
)
from trueline.analyze.workers.series import WorkerSeries, series_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.words import capitalized, counted, ranks_text, since_text
from trueline.store.reader import Run

CODE = "dispersion-high"
QUESTION = "workers"
NEEDS: tuple[str, ...] = ("loss", "grad_norm", "part_losses")

MILD = 1.1
"""Times as far apart as explained below which lasting differences are an info: 1.1 ** 2 = 1.21 of the variance."""

_FEW_STEPS = 5
"""Steps with parts below which the spread within workers is not what differences are held against."""

_WITHIN = "the spread within workers explains"
_WITHOUT = "they would be without what lasts"


@dataclass(frozen=True)
class _Excess:
    """How much further apart workers are than explained (and by what), when, and how strong the evidence is."""

    statistic: str
    severity: Severity
    ratio: float
    low: float
    high: float
    explained: str
    first: int
    crossed: int
    last: int
    alarm: Alarm
    since: tuple[int, int] | None = None
    """The steps between which it began (95 %), where ``first`` is a change point."""


def check(run: Run) -> list[Finding]:
    """Findings of workers that are too far apart; raises ``CannotTell`` with too few steps or workers."""
    return judge(series_of(run), promise_of(run))


def judge(series: WorkerSeries, promise: Promise) -> list[Finding]:
    """The same for series that are at hand; raises ``CannotTell`` where no detector could have alarmed."""
    groups = alike_groups(series)
    threshold = promise.log_threshold("parts", among=num_part_detectors(series))
    _require_enough(series, groups, threshold)
    findings: list[Finding] = []
    for members in groups:
        excess = _lasting(series, members, "losses", threshold)
        if excess is None and len(members) > 2:
            excess = _lasting(series, members, "gradient norms", threshold)
        excess = excess or _clustered(series, members, threshold)
        findings += [_finding(series, promise, members, excess)] if excess else []
    return findings


def _require_enough(series: WorkerSeries, groups: Sequence[tuple[int, ...]], threshold: float) -> None:
    """Raise ``CannotTell`` where no group has as many steps as an alarm needs if each step wins all it can."""
    short: list[str] = []
    for members in groups:
        nats = math.log(2) * (len(members) // 2)
        needed = 1 + steps_needed(threshold, nats=nats, num_bets=len(persistence.MEMORIES))
        have = max(len(compared_among(series, values, members)[0]) for values in (series.loss, series.log_norm))
        dealt = steps_needed(threshold, nats=math.log(permutation.NUM_DEALS + 1), num_bets=len(permutation.HIGH_BETS))
        if have >= needed or len(series.parts) >= dealt:
            return
        measured = np.isfinite(series.loss[:, list(members)]) | np.isfinite(series.log_norm[:, list(members)])
        tied = int(np.count_nonzero(np.count_nonzero(measured, axis=1) > 1))
        if not have and tied:
            raise CannotTell(
                f"all workers have equal losses and gradient norms, at {counted(tied, 'step')}", reason="undecidable"
            )
        short.append(
            f"{counted(have, 'step')} {'has' if have == 1 else 'have'} losses or gradient norms to compare, and with "
            f"{len(members)} workers that keep their order at every step {needed} are needed to stand out beyond chance"
        )
    if not short:
        raise CannotTell("no group has two workers that may be compared")
    raise CannotTell(short[0], reason="too-few-steps")


def _lasting(series: WorkerSeries, members: tuple[int, ...], quantity: str, threshold: float) -> _Excess | None:
    """Workers that keep their differences, also without the one that is furthest away."""
    values_TN = series.loss if quantity == "losses" else series.log_norm
    rows, values_RM = compared_among(series, values_TN, members)
    if not len(rows):
        return None
    allowance_RM = series.allowance[rows][:, list(members)]
    memory = memory_among(series, "loss" if quantity == "losses" else "log_norm", members)
    alarm = _lasting_alarm(values_RM, allowance_RM, threshold, memory)
    if alarm is None:
        return None
    alarm = replace(alarm, first=max(alarm.first - 1, 0))  # a bet rests on the steps before
    window_RM = values_RM[alarm.first : alarm.last + 1]
    rest = [m for m in range(len(members)) if m != persistence.farthest(window_RM)]
    if len(members) > 2 and _lasting_alarm(values_RM[:, rest], allowance_RM[:, rest], threshold, memory) is None:
        return None
    steps = rows[alarm.first : alarm.last + 1].tolist()
    dealt = permutation.spread_ratio(parts_of(series, members), steps) if quantity == "losses" else None
    known = dealt is not None and dealt.num_steps >= _FEW_STEPS
    effect = dealt if known else persistence.lasting_spread(window_RM) or dealt
    if effect is None:
        return None
    excess = _excess(
        f"lasting differences of {quantity}",
        "warning" if effect.ratio >= MILD else "info",
        effect,
        (series, rows, alarm),
    )
    return _dated(excess, series.steps[rows], values_RM, memory)


def _dated(excess: _Excess, steps_R: Ints, values_RM: Floats, memory: Memory) -> _Excess:
    """The same with the step at which the workers began to differ as they do in the end: by a change point of their
    residuals' inner product with the mean of these since the evidence starts.
    """
    residual_RM = values_RM - np.nanmean(values_RM, axis=1, keepdims=True)
    pattern_M = np.nanmean(residual_RM[excess.alarm.first : excess.alarm.last + 1], axis=0)
    along_R = np.nansum(residual_RM * np.nan_to_num(pattern_M), axis=1)
    onset = alarm_onset(along_R, excess.alarm, memory)
    first, low, high = (int(steps_R[row]) for row in (onset.at, onset.low, onset.high))
    return replace(excess, first=first, since=(low, high))


def _lasting_alarm(values_RM: Floats, allowance_RM: Floats, threshold: float, memory: Memory) -> Alarm | None:
    log_e = persistence.log_e_values(scores(values_RM), allowance_TN=allowance_RM, memory=memory)
    return alarm_of(log_e, threshold=threshold)


def _clustered(series: WorkerSeries, members: tuple[int, ...], threshold: float) -> _Excess | None:
    """Parts that are alike within batches, for no worker in particular, and not for the furthest one alone."""
    dealt = parts_of(series, members)
    found = whole_alarm(series, members, bets=permutation.HIGH_BETS, threshold=threshold)
    if found is None:
        return None
    alarm, rows = found
    steps = rows[alarm.first : alarm.last + 1].tolist()
    if len(members) > 2:
        means_RM = np.array([[float(np.nanmean(array)) for array in dealt[t]] for t in steps])
        odd = persistence.farthest(means_RM)
        rest = {t: tuple(array for m, array in enumerate(arrays) if m != odd) for t, arrays in dealt.items()}
        memory = memory_among(series, "loss", members)
        if parts_alarm(rest, series.steps, bets=permutation.HIGH_BETS, threshold=threshold, memory=memory) is None:
            return None
    effect = permutation.spread_ratio(dealt, steps)
    return None if effect is None else _excess("losses of parts dealt out anew", "info", effect, (series, rows, alarm))


def _excess(
    statistic: str,
    severity: Severity,
    effect: permutation.SpreadRatio | persistence.LastingSpread,
    place: tuple[WorkerSeries, Ints, Alarm],
) -> _Excess:
    series, rows, alarm = place
    first, crossed, last = (int(series.steps[rows[index]]) for index in (alarm.first, alarm.crossed, alarm.last))
    explained = _WITHIN if isinstance(effect, permutation.SpreadRatio) else _WITHOUT
    return _Excess(statistic, severity, effect.ratio, effect.low, effect.high, explained, first, crossed, last, alarm)


def _finding(series: WorkerSeries, promise: Promise, members: tuple[int, ...], excess: _Excess) -> Finding:
    ranks = tuple(series.ranks[n] for n in members)
    rate = promise.false_alarm_rate(
        "parts", excess.alarm.log_height, among=num_part_detectors(series), num_steps=len(series.steps)
    )
    norms = excess.statistic.endswith("norms")
    return Finding(
        code=CODE,
        severity=excess.severity,
        claim=_claim(ranks, excess),
        ranks=ranks,
        step_first=excess.first,
        step_last=excess.last,
        sites=sites_of(excess.first, ranks[:2], phase="grad" if norms else "loss", names=("all",)),
        measured=excess.ratio,
        expected=1.0,
        unit=f"standard deviations between workers, in those that {excess.explained}",
        false_alarm_rate=rate,
        evidence={
            "statistic": excess.statistic,
            "interval": [excess.low, excess.high],
            "log_height": excess.alarm.log_height,
            "threshold": excess.alarm.threshold,
            "crossed_step": excess.crossed,
            **({} if excess.since is None else {"onset_interval": list(excess.since)}),
            "compared": list(ranks),
        },
        next=_next(ranks, excess),
    )


def _claim(ranks: tuple[int, ...], excess: _Excess) -> str:
    by = f"{excess.ratio:.2f} times (95 %: {excess.low:.2f}-{excess.high:.2f}) as far apart as {excess.explained}"
    since = since_text(excess.first, excess.since or (excess.first, excess.first))
    if excess.statistic.startswith("lasting"):
        what = excess.statistic.removeprefix("lasting differences of ")
        return f"The {what} of {ranks_text(ranks)} differ lastingly {since}: they are {by}."
    return (
        f"{capitalized(ranks_text(ranks))} read batches that are alike within themselves {since}: "
        f"their mean losses are {by}, in no lasting order."
    )


def _next(ranks: tuple[int, ...], excess: _Excess) -> tuple[str, ...]:
    if excess.statistic.startswith("lasting"):
        return (
            f"Compare what {ranks_text(ranks[:2])} read: the same sources of data, in the same proportions?",
            "Where ranks are meant to differ, say which are alike: worker_groups in the plan.",
        )
    return ("Nothing, if batches are bucketed or hold several answers to one prompt; otherwise shuffle the data.",)
