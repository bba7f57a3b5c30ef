"""One worker's gradient points in another direction than the others'.

What it finds
-------------
A rank whose gradient, whole or of one parameter group, has a smaller (or larger) cosine to the mean of the other
ranks' gradients than theirs have, more often than chance allows: a flipped sign, labels that are noise, other data,
noise added to its gradient, one layer computed wrongly.

Why it matters
--------------
Norm and loss may be normal. A gradient with the wrong sign cancels that of a healthy worker at every step.

How it decides
--------------
As `worker-loss-outlier` does, on the cosine of each worker's gradient to the mean of the others': bets against the
exchangeability of workers at each step, added up over every start. No cosine counts as healthy by itself: late in
training cosines near zero are healthy, and then all workers have them. The whole gradient has a sixth of the
false-alarm budget (`false_alarms` per 10,000 healthy steps over all statistical checks), all parameter groups together
a twelfth. A worker whose gradient is scaled changes the others' cosines; where `worker-scale` explains the difference,
it is not reported again. Workers that read the same samples agree better with the mean of the others, which contains a
copy, and a worker that is no copy agrees less; where `dispersion-low` or `duplicate-data` names the copies, that is not
reported again either.

What it may miss
----------------
With two workers there is one cosine, which both share: it cannot be judged. Where healthy cosines are near zero there
is no common direction to compare with: noise is not detected until the others agree. Directions are compared on sampled
steps only.

Example
-------
The gradient of rank 3 has a mean cosine of -0.12 to the mean of the others since step 40; the others have 0.15.

Wrong and right
---------------
Wrong:

```python
inputs = inputs[torch.randperm(len(inputs))]  # in the shard of one rank: labels stay where they were
```

Right:

```python
order = torch.randperm(len(inputs))
inputs, labels = inputs[order], labels[order]
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.intervals import mean_of_workers
from trueline.laws.data_split.repeats_in_step import duplicates_cover
from trueline.laws.unlike_workers.comparable import comparable_groups
from trueline.laws.unlike_workers.copies import copies_among
from trueline.laws.unlike_workers.gradient_scale import unexplained
from trueline.laws.unlike_workers.outlier_finding import NamedOutlier
from trueline.laws.unlike_workers.outliers import find_outliers
from trueline.laws.unlike_workers.quiet import Quiet
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import of_ranks
from trueline.store.reader import Run

CODE = "worker-direction-outlier"
QUESTION = "workers"
NEEDS: tuple[str, ...] = (
    "cosine_others",
    "group_cosine_others",
    "grad_norm",
    "group_grad_norms",
    "sample_digests",
    "loss",
    "tokens",
)
FOLLOWS = Quiet("direction")


def check(run: Run) -> list[Finding]:
    """A warning for each worker whose direction stands out; raises ``CannotTell`` without cosines to compare."""
    findings = judge(series_of(run), alarm_budget_of(run))
    # Ranks that read the same samples agree better: by digests another check says so, and exactly.
    return [finding for finding in findings if not duplicates_cover(run, finding, _agreeing_ranks(run, finding))]


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """A warning for each worker of ``series`` whose direction stands out; raises ``CannotTell`` as ``check`` does."""
    if series.num_workers < 3:
        raise CannotTell(
            "two workers share one cosine, so neither can be an outlier; it takes three",
            reason="undecidable",
        )
    outliers = unexplained(find_outliers(series, budget, "direction"), series, budget)
    named_outliers = [NamedOutlier(series, outlier) for outlier in outliers]
    return [_finding(outlier) for outlier in named_outliers if not _is_of_copies(outlier, budget)]


def _agreeing_ranks(run: Run, finding: Finding) -> set[int]:
    """The ranks that agree better with the others, as those that read the same samples must."""
    ranks = set(finding.ranks)
    higher = finding.measured is not None and finding.expected is not None and finding.measured > finding.expected
    return ranks if higher else set(data_parallel_ranks(run)) - ranks


def _is_of_copies(outlier: NamedOutlier, budget: AlarmBudget) -> bool:
    """True if it is only that some workers are copies of each other, which gives them larger cosines than others.

    Where half of the workers or more stand out, these are copies, or all that are none.
    """
    series = outlier.series
    higher = outlier.effect(series.cosine).value > 0
    workers = set(outlier.outlier.workers if higher else outlier.outlier.peers)
    ranks = {series.ranks[worker] for worker in workers}
    groups = [members for members in comparable_groups(series) if workers <= set(members)]
    copies = [close for members in groups for close in copies_among(series, budget, members)]
    first, last = outlier.first_step, outlier.last_step
    return any(ranks <= set(close.ranks) and close.first <= last and first <= close.last for close in copies)


def _finding(outlier: NamedOutlier) -> Finding:
    groups = outlier.differing_groups
    difference = outlier.effect(groups.values)
    cosine = outlier.effect(groups.values, mean_of_workers).value
    peers = "ranks that differ from them" if outlier.is_undecided else "others"
    gradient = of_ranks(["gradient"], outlier.ranks, verbs=("has", "have"), where=groups.clause)
    return outlier.gradient_finding(
        f"{gradient} a mean cosine of {cosine:.2g} to the mean of the others {outlier.when_text}; "
        f"the {peers} have {cosine - difference.value:.2g}",
        code=CODE,
        measured=cosine,
        expected=cosine - difference.value,
        unit="mean cosine to the mean of the other workers' gradients",
        interval=difference.interval(),
        advice=(
            f"Look for a sign, a mask or a loss term that only {outlier.subject} has, and at the samples and "
            f"labels that it read at step {outlier.first_step} and after.",
        ),
        interval_of="the difference in cosine",
        num_steps=difference.num_steps,
    )
