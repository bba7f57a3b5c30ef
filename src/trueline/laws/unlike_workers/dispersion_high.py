"""The workers differ from each other persistently, by more than the samples in their batches explain.

What it finds
-------------
Workers whose losses, or gradient norms, keep their distance and their order over steps: each rank reads its own data
mixture, language or length bucket, or computes with its own settings. No single worker needs to stand out. The finding
states how much larger the differences are than they would be if all workers drew from one pool.

Why it matters
--------------
The mean over workers is then an average over mixtures in fixed proportions that nobody chose, the noise of the update
is larger than the batch size suggests, and checks that look for a single outlier cannot work where every worker is one.

How it decides
--------------
It bets that the differences of earlier steps recur at this one. If workers are exchangeable, swapping their values at a
step does not change the probability of the step, whatever the distribution, and the bets win nothing on average
(`judge/stats/persistence.py` has the e-value and the source). It alarms when an e-detector of these bets reaches the
height that its share of the false-alarm budget allows (`plan.false_alarms` expected per 10,000 healthy steps over all
checks). Batches of similar samples that go to a random worker at every step, such as buckets of length, do not win
these bets.

One worker that differs from all others is left to the outlier checks: with three workers or more, the alarm must remain
after the most distant worker is removed. Fixed shards keep small differences from one epoch to the next; the size of
difference that the number of distinct samples in a shard explains is allowed for.

Size: where per-sample (or per-micro-batch) losses were recorded, the standard deviation between workers over what the
spread within workers explains, with a 95 % interval; otherwise over the spread between workers that remains when their
persistent differences are removed. It is a warning from 1.1 times on, and an info below, where the noise of the update
is less than a fifth larger.

As an info it also reports losses that are similar within each worker's batch without a persistent difference: then
assigning the samples to workers at random makes the workers more similar than they are
(`judge/stats/permutation.py`), by more than a factor of 2 in variance, which neighbouring pieces of documents
explain. That may be intended: buckets of length, several answers to one prompt. Statistics that take samples as
independent are then too confident.

What it may miss
----------------
Workers that each read documents from end to end differ for as long as a document lasts: then the evidence is divided by
the autocorrelation time (`judge/stats/autocorrelation.py`), and persistent differences are found later. Documents
that last longer than a 40th of the Run may still be reported. Workers in different groups of `plan.worker_groups` are
not compared. Differences that come and go within a few steps are missed. With two workers a difference does not say
which of them caused it: then only losses are judged here, the outlier checks report the same of one of them, and each
step can win at most ln 2.

Example
-------
The losses of ranks 0-7 differ persistently since step 12: they are 2.3 times (95 %: 2.1-2.5) as far apart as the spread
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
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import Floats, Ints, sites_of
from trueline.judge.stats import permutation, persistence
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.alarms import Alarm, alarm_of, steps_needed
from trueline.judge.stats.autocorrelation import Dependence
from trueline.judge.stats.change_point import alarm_onset
from trueline.judge.stats.exchangeability import scores
from trueline.laws.unlike_workers.comparable import (
    all_samples_alarm,
    comparable_groups,
    compared_among,
    dependence_among,
    num_sample_detectors,
    sample_losses_alarm,
    sample_losses_of,
)
from trueline.laws.unlike_workers.quiet_sets import QuietOrder
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import capitalized, counted, ranks_text, since_text
from trueline.store.reader import Run

CODE = "dispersion-high"
QUESTION = "workers"
NEEDS: tuple[str, ...] = (
    "loss",
    "grad_norm",
    "part_losses",
    "cosine_others",
    "group_cosine_others",
    "group_grad_norms",
    "sample_digests",
    "tokens",
)

FOLLOWS = QuietOrder()

MILD = 1.1
"""Times as far apart as explained below which persistent differences are an info: 1.1 ** 2 = 1.21 of the variance."""

_FEW_STEPS = 5
"""Steps with per-sample losses below which differences are not compared with the spread within workers."""

PersistentQuantity = Literal["losses", "gradient norms"]

_DEALT_LOSSES = "losses of parts dealt out anew"
_SPREAD_WITHIN = "the spread within workers explains"
_WITHOUT_DIFFERENCES = "they would be without the persistent differences"


@dataclass(frozen=True)
class _Excess:
    """Workers that are further apart than is ``explained``: by which ratio, when, and with how strong an alarm. The
    ``quantity`` differs persistently; None where workers are apart in no persistent order.
    """

    quantity: PersistentQuantity | None
    severity: Severity
    ratio: float
    low: float
    high: float
    explained: str
    first: int
    crossed: int
    last: int
    alarm: Alarm
    onset_interval: tuple[int, int] | None = None
    """The steps between which it began (95 %), where ``first`` is a change point."""

    @property
    def statistic(self) -> str:
        """Name of the statistic in the evidence."""
        return _DEALT_LOSSES if self.quantity is None else f"lasting differences of {self.quantity}"


def check(run: Run) -> list[Finding]:
    """Findings of workers that are too far apart; raises ``CannotTell`` with too few steps or workers."""
    return judge(series_of(run), alarm_budget_of(run))


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """Findings of workers of ``series`` that are too far apart; raises ``CannotTell`` as ``check`` does."""
    groups = comparable_groups(series)
    threshold = budget.log_threshold("sample-losses", among=num_sample_detectors(series))
    _require_enough(series, groups, threshold)
    findings: list[Finding] = []
    for members in groups:
        excess = _persistent_excess(series, members, "losses", threshold)
        # With two workers a difference of norms does not say which is off, and an outlier is reported already.
        if excess is None and len(members) > 2:
            excess = _persistent_excess(series, members, "gradient norms", threshold)
        excess = excess or _clustered_excess(series, members, threshold)
        findings += [_finding(series, budget, members, excess)] if excess else []
    return findings


def _require_enough(series: WorkerSeries, groups: Sequence[tuple[int, ...]], threshold: float) -> None:
    """Raise ``CannotTell`` where no group has as many steps as an alarm needs if each step wins all it can."""
    texts: list[str] = []
    for members in groups:
        nats = math.log(2) * (len(members) // 2)
        order_steps = 1 + steps_needed(threshold, nats=nats, num_bets=len(persistence.HORIZONS))
        num_steps = max(len(compared_among(series, values, members)[0]) for values in (series.loss, series.log_norm))
        dealt_steps = steps_needed(
            threshold, nats=math.log(permutation.NUM_DEALS + 1), num_bets=len(permutation.HIGH_BETS)
        )
        if num_steps >= order_steps or len(series.sample_losses) >= dealt_steps:
            return
        measured = np.isfinite(series.loss[:, list(members)]) | np.isfinite(series.log_norm[:, list(members)])
        num_tied = int(np.count_nonzero(np.count_nonzero(measured, axis=1) > 1))
        if not num_steps and num_tied:
            raise CannotTell(
                f"all workers have equal losses and gradient norms, at {counted(num_tied, 'step')}",
                reason="undecidable",
            )
        texts.append(
            f"{counted(num_steps, 'step')} {'has' if num_steps == 1 else 'have'} losses or gradient norms to compare, "
            f"and with {len(members)} workers that keep their order at every step {order_steps} are needed to stand "
            "out beyond chance"
        )
    if not texts:
        raise CannotTell("no group has two workers that may be compared")
    raise CannotTell(texts[0], reason="too-few-steps")


def _persistent_excess(
    series: WorkerSeries, members: tuple[int, ...], quantity: PersistentQuantity, threshold: float
) -> _Excess | None:
    """The excess of workers that keep their differences, also without the most distant one."""
    values_TN = series.loss if quantity == "losses" else series.log_norm
    rows, values_RM = compared_among(series, values_TN, members)
    if not len(rows):
        return None
    allowance_RM = series.allowance[rows][:, list(members)]
    dependence = dependence_among(series, "loss" if quantity == "losses" else "log_norm", members)
    alarm = _persistent_alarm(values_RM, allowance_RM, threshold, dependence)
    if alarm is None:
        return None
    alarm = replace(alarm, first=max(alarm.first - 1, 0))  # a bet rests on the steps before
    window_RM = values_RM[alarm.first : alarm.last + 1]
    rest = [m for m in range(len(members)) if m != persistence.farthest(window_RM)]
    if len(members) > 2 and _persistent_alarm(values_RM[:, rest], allowance_RM[:, rest], threshold, dependence) is None:
        return None
    steps = rows[alarm.first : alarm.last + 1].tolist()
    dealt_spread = permutation.spread_ratio(sample_losses_of(series, members), steps) if quantity == "losses" else None
    is_known = dealt_spread is not None and dealt_spread.num_steps >= _FEW_STEPS
    effect = dealt_spread if is_known else persistence.persistent_spread(window_RM) or dealt_spread
    if effect is None:
        return None
    excess = _excess(series, rows, alarm, quantity, "warning" if effect.ratio >= MILD else "info", effect)
    return _dated_excess(excess, series.steps[rows], values_RM, dependence)


def _dated_excess(excess: _Excess, steps_R: Ints, values_RM: Floats, dependence: Dependence) -> _Excess:
    """The excess with the step at which the workers began to differ as they do in the end: by a change point of their
    residuals' inner product with the mean of these since the evidence starts.
    """
    residual_RM = values_RM - np.nanmean(values_RM, axis=1, keepdims=True)
    pattern_M = np.nanmean(residual_RM[excess.alarm.first : excess.alarm.last + 1], axis=0)
    along_R = np.nansum(residual_RM * np.nan_to_num(pattern_M), axis=1)
    onset = alarm_onset(along_R, excess.alarm, dependence)
    first, low, high = (int(steps_R[row]) for row in (onset.at, onset.low, onset.high))
    return replace(excess, first=first, onset_interval=(low, high))


def _persistent_alarm(
    values_RM: Floats, allowance_RM: Floats, threshold: float, dependence: Dependence
) -> Alarm | None:
    log_e = persistence.log_e_values(scores(values_RM), allowance_TN=allowance_RM, dependence=dependence)
    return alarm_of(log_e, threshold=threshold)


def _clustered_excess(series: WorkerSeries, members: tuple[int, ...], threshold: float) -> _Excess | None:
    """The excess of batches of similar samples, of no worker in particular, and not of the most distant one alone."""
    losses_by_step = sample_losses_of(series, members)
    evidence = all_samples_alarm(series, members, bets=permutation.HIGH_BETS, threshold=threshold)
    if evidence is None:
        return None
    alarm, rows = evidence
    steps = rows[alarm.first : alarm.last + 1].tolist()
    if len(members) > 2:
        means_RM = np.array([[float(np.nanmean(array)) for array in losses_by_step[t]] for t in steps])
        farthest = persistence.farthest(means_RM)
        kept_losses = {
            t: tuple(array for m, array in enumerate(arrays) if m != farthest) for t, arrays in losses_by_step.items()
        }
        dependence = dependence_among(series, "loss", members)
        kept_evidence = sample_losses_alarm(
            kept_losses, series.steps, bets=permutation.HIGH_BETS, threshold=threshold, dependence=dependence
        )
        if kept_evidence is None:
            return None
    effect = permutation.spread_ratio(losses_by_step, steps)
    return None if effect is None else _excess(series, rows, alarm, None, "info", effect)


def _excess(
    series: WorkerSeries,
    rows: Ints,
    alarm: Alarm,
    quantity: PersistentQuantity | None,
    severity: Severity,
    effect: permutation.SpreadRatio | persistence.PersistentSpread,
) -> _Excess:
    """The excess that ``effect`` measures over the steps of ``alarm``, which indexes ``rows`` of the series."""
    first, crossed, last = (int(series.steps[rows[index]]) for index in (alarm.first, alarm.crossed, alarm.last))
    explained = _SPREAD_WITHIN if isinstance(effect, permutation.SpreadRatio) else _WITHOUT_DIFFERENCES
    return _Excess(quantity, severity, effect.ratio, effect.low, effect.high, explained, first, crossed, last, alarm)


def _finding(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...], excess: _Excess) -> Finding:
    ranks = tuple(series.ranks[n] for n in members)
    rate = budget.false_alarm_rate(
        "sample-losses", excess.alarm.log_height, among=num_sample_detectors(series), num_steps=len(series.steps)
    )
    phase = "grad" if excess.quantity == "gradient norms" else "loss"
    return Finding(
        code=CODE,
        severity=excess.severity,
        claim=_claim(ranks, excess),
        ranks=ranks,
        step_first=excess.first,
        step_last=excess.last,
        sites=sites_of(excess.first, ranks[:2], phase=phase, names=("all",)),
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
            **({} if excess.onset_interval is None else {"onset_interval": list(excess.onset_interval)}),
            "compared": list(ranks),
        },
        next=_next(ranks, excess),
    )


def _claim(ranks: tuple[int, ...], excess: _Excess) -> str:
    ratio_text = (
        f"{excess.ratio:.2f} times (95 %: {excess.low:.2f}-{excess.high:.2f}) as far apart as {excess.explained}"
    )
    onset_text = since_text(excess.first, excess.onset_interval or (excess.first, excess.first))
    if excess.quantity is not None:
        return f"The {excess.quantity} of {ranks_text(ranks)} differ persistently {onset_text}: they are {ratio_text}."
    return (
        f"{capitalized(ranks_text(ranks))} read batches of similar samples {onset_text}: "
        f"their mean losses are {ratio_text}, in no persistent order."
    )


def _next(ranks: tuple[int, ...], excess: _Excess) -> tuple[str, ...]:
    if excess.quantity is not None:
        return (
            f"Compare what {ranks_text(ranks[:2])} read: the same sources of data, in the same proportions?",
            "Where ranks are meant to differ, list those that should agree in worker_groups in the plan.",
        )
    return ("Nothing, if batches are bucketed or hold several answers to one prompt; otherwise shuffle the data.",)
