"""Workers are averaged with equal weight though their numbers of tokens are far from equal.

What it finds
-------------
One rank that always has far fewer, or more, tokens with a label than the others, so that each of its tokens counts
several times as much as one elsewhere. And token counts that jump so wildly from rank to rank and step to step that
the mean of the workers' means is at least twice as noisy as it need be. In both cases only where workers are averaged
with equal weight; averages that are weighted by tokens are not reported however uneven the counts.

Why it matters
--------------
A mean of means is not the mean over tokens. Short answers get the weight of long ones, the optimum moves, and a run
with another number of workers, or with gradient accumulation, optimizes another objective. Widely used trainers had
this fault for years (transformers#34191).

How it decides
--------------
Three questions, and all must be answered.

*Is it more than chance?* For a persistent imbalance: token counts are exchangeable between workers that draw from one
pool, whatever their distribution, and an e-detector of bets on each worker's log count must reach the height that its
share of the false-alarm budget allows (`judge/stats/exchangeability.py`; `plan.false_alarms` expected per 10,000
healthy steps over all checks). For wild counts: with n the counts of a step, the factor mean(n) * mean(1/n), arithmetic
over harmonic mean, is by how much the variance of the mean of means exceeds that of the mean over tokens, if each token
adds its own noise: (1/N^2) sum(1/n) over 1/sum(n). f - 1 is never negative, so 1 + b((f - 1)/0.5 - 1) with 0 < b < 1 is
an e-value against "f is at most 1.5 in the mean" (betting on a bounded mean: Waudby-Smith & Ramdas, JRSS B 86, 2024).
Log-normal counts of sigma s have f = 1 + (1 - 1/N)(exp(s^2) - 1) in the mean: 1.14 to 1.28 for s = 0.5, as batches of
ordinary texts have, and 5 to 9 for s = 1.5.

*Is it large?* It reports a token on some rank that counts twice as much as it should, or less than half, and a noise
factor of 2 or more: then half of the tokens would give as good an update, or half of a rank's tokens are wasted. With
s_i the rank's share of the tokens, averaged over steps, a token of it counts (1/N)/s_i times what it should; half of
the sum of |s_i - 1/N| is the weight that is misplaced.

*Are workers averaged with equal weight?* A gradient that is a mean over n tokens does not grow with n, one that is a
sum over them does: the slope of log gradient norms on log token counts is between -1/2 and 0, or between 1/2 and 1,
and the loss follows with slopes of 0 or 1 (`unlike_workers/loss_weighting.py`). A slope counts only if its interval,
at a level of 0.001, is on one side of the middle. If neither says so, or they contradict each other, or the reduction
is code that may weight by itself, the check answers "cannot tell".

*Since when?* Persistent imbalance: the least-squares change point of the rank's log count less the mean of the others',
with a 95 % interval of steps (`judge/stats/change_point.py`). Wild counts: where the bets begin to win.

What it may miss
----------------
Imbalance between micro-batches of one worker. Counts that were not seen: they come from the labels, else the attention
mask, else the inputs (`token_source` in the environment). Weights that are right on average but set to a fixed number
of tokens are sums, and not judged. Uneven last batches of an epoch are left out where other steps are even.

Example
-------
A token on rank 3 counts 7.1 times what it should since step 0: workers are averaged with equal weight, and rank 3 has
1.8 % of the tokens.

Wrong and right
---------------
Wrong:

```python
loss = cross_entropy(logits, labels)  # the mean over the tokens of this rank; DDP averages these means
```

Right:

```python
num_tokens = (labels != -100).sum()
dist.all_reduce(num_tokens)
loss = cross_entropy(logits, labels, reduction="sum") * world_size / num_tokens
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import Floats, Ints, envs_of, sites_of
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.alarms import Alarm, alarm_of, steps_needed
from trueline.judge.stats.change_point import Onset, worker_onset
from trueline.judge.stats.exchangeability import log_e_values, scores
from trueline.laws.unlike_workers.comparable import comparable_groups, compared_among, dependence_among
from trueline.laws.unlike_workers.loss_weighting import Slope, Weighting, weighting_of
from trueline.laws.unlike_workers.quiet_sets import QuietTokens
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.laws.unlike_workers.token_counts import (
    counts_among,
    log_noise_e_values,
    log_tokens,
    noise_factors,
    num_lasting,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text, since_text
from trueline.store.reader import Run

CODE = "token-imbalance"
QUESTION = "workers"
NEEDS: tuple[str, ...] = (
    "tokens",
    "loss",
    "grad_norm",
    "cosine_others",
    "group_cosine_others",
    "group_grad_norms",
    "sample_digests",
)

LARGE = 2.0
"""Least factor of a token's weight, or of the noise of an update, that is reported."""

FOLLOWS = QuietTokens()


@dataclass(frozen=True)
class _Imbalance:
    """Shares of the tokens [M] and noise factors [R] of ``members`` over the evidence; steps are optimizer steps.
    ``onset`` is the lowest and highest that the first may be (95 %), where a change point dates it.
    """

    members: tuple[int, ...]
    persistent: bool
    shares: Floats
    factors: Floats
    steps: Ints
    onset: tuple[int, int]
    crossed: int
    alarm: Alarm
    among: int

    @property
    def weights(self) -> Floats:
        """[M] factor by which a token of each member counts more than it should."""
        return 1 / (len(self.members) * self.shares)

    @property
    def noise(self) -> float:
        """Factor by which the variance of the update is larger than it need be."""
        return float(self.factors.mean())

    @property
    def large(self) -> bool:
        """True where the imbalance is worth reporting."""
        if self.persistent:
            return bool(np.any(self.weights >= LARGE) or np.any(self.weights <= 1 / LARGE))
        return self.noise >= LARGE


def check(run: Run) -> list[Finding]:
    """Findings of unequal token counts under equal weights; raises ``CannotTell`` where the weights are not known."""
    series = series_of(run)
    envs = list(envs_of(run, series.ranks).values())
    sources = {env.loss_source for env in envs}
    noun = "sample" if envs and all(env.token_source == "samples" for env in envs) else "token"
    return judge(
        series,
        alarm_budget_of(run),
        loss_is_local=None if not sources or "" in sources else sources <= {"backward", "output"},
        reduction_known=all(env.reduce_known for env in envs),
        noun=noun,
    )


def judge(
    series: WorkerSeries,
    budget: AlarmBudget,
    *,
    loss_is_local: bool | None = None,
    reduction_known: bool = True,
    noun: str = "token",
) -> list[Finding]:
    """Findings of series that are at hand. ``loss_is_local`` is as in ``weighting_of``; ``reduction_known`` is False
    where code that may weight workers itself reduces the gradients; ``noun`` is what is counted.
    """
    groups = comparable_groups(series)
    findings: list[Finding] = []
    for members in groups:
        imbalance = _persistent_imbalance(series, budget, members) or _wild_imbalance(series, budget, members)
        if imbalance is None:
            continue
        weighting = _weighting_since(series, imbalance, loss_is_local=loss_is_local)
        # each token counts alike then, whatever the counts are
        if weighting.averaging == "by tokens":
            continue
        if weighting.averaging is None or not reduction_known:
            why = weighting.why if weighting.averaging is None else "the reduction is code that may weight workers"
            raise CannotTell(
                f"{noun} counts of workers are far from equal since step {imbalance.steps[0]}, but {why}",
                reason="undecidable",
            )
        findings.append(_finding(series, budget, imbalance, weighting, noun))
    if not findings:
        _require_counts(series, budget, groups)
    return findings


def _persistent_imbalance(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> _Imbalance | None:
    """The worker whose counts are least like the others', if its tokens' weight, or another's, is far off."""
    rows, values_RM = compared_among(series, log_tokens(series), members)
    if not len(rows):
        return None
    among = num_lasting(series)
    threshold = budget.log_threshold("tokens", among=among)
    dependence = dependence_among(series, "tokens", members)
    log_e_RMB = log_e_values(scores(values_RM), dependence_N=dependence.ratio)
    alarms = [alarm_of(log_e_RMB[:, m], threshold=threshold) for m in range(len(members))]
    imbalances = [
        _imbalance(series, members, (rows, alarm, among), worker_onset(values_RM, m, alarm, dependence))
        for m, alarm in enumerate(alarms)
        if alarm is not None
    ]
    # a small imbalance that lasts is certain to be found, and worth nothing
    large = [imbalance for imbalance in imbalances if imbalance.large]
    return max(large, key=lambda imbalance: imbalance.alarm.log_height) if large else None


def _wild_imbalance(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> _Imbalance | None:
    """Counts that are so unequal at each step that the update is noisier than it need be."""
    factors_T = noise_factors(counts_among(series, members))
    rows = np.flatnonzero(np.isfinite(factors_T)).astype(np.int64)
    # the level is shared with the persistent kind, which is asked of each group too
    among = 2 * len(comparable_groups(series))
    log_e_RB = log_noise_e_values(factors_T[rows]) / dependence_among(series, "tokens", members).ratio
    alarm = alarm_of(log_e_RB, threshold=budget.log_threshold("tokens", among=among))
    if alarm is None:
        return None
    imbalance = _imbalance(series, members, (rows, alarm, among), None)
    return imbalance if imbalance.large else None


def _imbalance(
    series: WorkerSeries, members: tuple[int, ...], evidence: tuple[Ints, Alarm, int], onset: Onset | None
) -> _Imbalance:
    """Persistent imbalance, which has an ``onset``, or wild counts. These had no level before, only a bound that they
    were below: they are dated by where the bets begin to win.
    """
    (rows, alarm, among), persistent = evidence, onset is not None
    onset = onset or Onset(alarm.first, alarm.first, alarm.first)
    first, low, high = (int(rows[index]) for index in (onset.at, onset.low, onset.high))
    counts_TM = counts_among(series, members)
    window = slice(first, int(rows[alarm.last]) + 1)
    # shares compare only where all counts are known
    whole_RM = counts_TM[window][np.isfinite(counts_TM[window]).all(axis=1)]
    shares_RM = whole_RM / whole_RM.sum(axis=1, keepdims=True)
    factors = noise_factors(counts_TM[window])
    return _Imbalance(
        members=members,
        persistent=persistent,
        shares=shares_RM.mean(axis=0) if len(shares_RM) else np.full(len(members), 1 / len(members)),
        factors=factors[np.isfinite(factors)],
        steps=series.steps[window],
        onset=(int(series.steps[low]), int(series.steps[high])),
        crossed=int(series.steps[rows[alarm.crossed]]),
        alarm=alarm,
        among=among,
    )


def _weighting_since(series: WorkerSeries, imbalance: _Imbalance, *, loss_is_local: bool | None) -> Weighting:
    """Weighting of workers at all steps since the evidence starts."""
    first = int(np.count_nonzero(series.steps < imbalance.steps[0]))
    members = list(imbalance.members)
    return weighting_of(
        series.loss[first:, members],
        series.log_norm[first:, members],
        log_tokens(series)[first:, members],
        loss_is_local=loss_is_local,
    )


def _finding(
    series: WorkerSeries, budget: AlarmBudget, imbalance: _Imbalance, weighting: Weighting, noun: str
) -> Finding:
    compared = tuple(series.ranks[n] for n in imbalance.members)
    distances = np.abs(np.log(imbalance.weights))
    worst = int(np.argmax(distances))
    ranks = tuple(rank for rank, distance in zip(compared, distances, strict=True) if distance >= math.log(LARGE))
    # wild counts are nobody's in particular
    ranks = ranks if imbalance.persistent else compared
    first = int(imbalance.steps[0])
    return Finding(
        code=CODE,
        severity="warning",
        claim=_claim(compared, imbalance, worst, noun),
        ranks=ranks,
        step_first=first,
        step_last=int(imbalance.steps[-1]),
        sites=sites_of(first, ranks[:2], phase="loss", names=("all",)),
        measured=float(imbalance.weights[worst]) if imbalance.persistent else imbalance.noise,
        expected=1.0,
        unit=f"times what a {noun} should count" if imbalance.persistent else "times the variance of the mean over all",
        false_alarm_rate=budget.false_alarm_rate(
            "tokens", imbalance.alarm.log_height, among=imbalance.among, num_steps=len(series.steps)
        ),
        evidence=_evidence(compared, imbalance, weighting),
        next=(
            f"Divide the sum of each worker's losses by the number of {noun}s of all workers over the number of "
            "workers, not by the worker's own number (HF Trainer: average_tokens_across_devices=True).",
            f"Or give workers equal numbers of {noun}s: pack, or bucket by length.",
        ),
    )


def _claim(ranks: Sequence[int], imbalance: _Imbalance, worst: int, noun: str) -> str:
    first = int(imbalance.steps[0])
    if imbalance.persistent:
        return (
            f"A {noun} on rank {ranks[worst]} counts {imbalance.weights[worst]:.2g} times what it should "
            f"{since_text(first, imbalance.onset)}: workers are averaged with equal weight, and rank {ranks[worst]} "
            f"has {imbalance.shares[worst]:.1%} of the {noun}s."
        )
    return (
        f"The {noun} counts of {ranks_text(ranks)} are so unequal since step {first} that averaging them with equal "
        f"weight makes the update's variance {imbalance.noise:.1f} times that of the mean over all {noun}s."
    )


def _evidence(ranks: Sequence[int], imbalance: _Imbalance, weighting: Weighting) -> dict[str, object]:
    def interval(slope: Slope | None) -> list[float] | None:
        return None if slope is None else [slope.value, slope.low, slope.high]

    shares = imbalance.shares
    num = len(imbalance.factors)
    half = 1.96 * float(imbalance.factors.std(ddof=1)) / math.sqrt(num) if num > 1 else math.inf
    return {
        "statistic": "log token counts" if imbalance.persistent else "arithmetic over harmonic mean of token counts",
        "shares": {str(rank): float(share) for rank, share in zip(ranks, shares, strict=True)},
        "misplaced_weight": float(np.abs(shares - 1 / len(shares)).sum() / 2),
        "noise_factor": imbalance.noise,
        "interval": None if imbalance.persistent else [imbalance.noise - half, imbalance.noise + half],
        "averaging": weighting.why,
        "norm_slope": interval(weighting.norm_slope),
        "loss_slope": interval(weighting.loss_slope),
        "log_height": imbalance.alarm.log_height,
        "threshold": imbalance.alarm.threshold,
        "crossed_step": imbalance.crossed,
        **({"onset_interval": list(imbalance.onset)} if imbalance.persistent else {}),
        "compared": list(ranks),
    }


def _require_counts(series: WorkerSeries, budget: AlarmBudget, groups: Sequence[tuple[int, ...]]) -> None:
    """Raise ``CannotTell`` where no step has the counts of two workers, or where counts differ at too few steps for any
    of them to stand out had it been the last at each.
    """
    has_counts = {
        members: np.count_nonzero(np.isfinite(counts_among(series, members)), axis=1) > 1 for members in groups
    }
    if not any(steps.any() for steps in has_counts.values()):
        raise CannotTell("no step has the token counts of two workers that may be compared")
    threshold = budget.log_threshold("tokens", among=num_lasting(series))
    short: list[str] = []
    for members, steps in has_counts.items():
        unequal = len(compared_among(series, log_tokens(series), members)[0])
        needed = steps_needed(threshold, nats=math.log(len(members)), num_bets=2)
        if int(np.count_nonzero(steps)) >= needed or not unequal:
            return
        short.append(
            f"{np.count_nonzero(steps)} steps have token counts of {len(members)} workers, which differ, and {needed} "
            "are needed for a worker to stand out beyond chance"
        )
    raise CannotTell(short[0], reason="too-few-steps")
