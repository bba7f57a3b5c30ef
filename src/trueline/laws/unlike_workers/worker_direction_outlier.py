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
from trueline.laws.unlike_workers.outlier_finding import gradient_finding, named, subject, when, where_differing
from trueline.laws.unlike_workers.outliers import Outlier, effect_of, find_outliers
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
    found = judge(series_of(run), alarm_budget_of(run))
    return [finding for finding in found if not duplicates_cover(run, finding, _who_agrees(run, finding))]


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """The same of series."""
    if series.num_workers < 3:
        raise CannotTell(
            "two workers share one cosine, so neither can be an outlier; it takes three",
            reason="undecidable",
        )
    found = find_outliers(series, budget, "direction")
    left = [outlier for outlier in unexplained(found, series, budget) if not _of_copies(series, budget, outlier)]
    return [_finding(series, outlier) for outlier in left]


def _who_agrees(run: Run, finding: Finding) -> set[int]:
    """The ranks that agree better with the others, as those that read the same samples must."""
    ranks = set(finding.ranks)
    higher = finding.measured is not None and finding.expected is not None and finding.measured > finding.expected
    return ranks if higher else set(data_parallel_ranks(run)) - ranks


def _of_copies(series: WorkerSeries, budget: AlarmBudget, outlier: Outlier) -> bool:
    """Whether all there is to it is that some workers are copies of each other: they have larger cosines than others.

    Where half of the workers or more stand out, these are copies, or all that are none.
    """
    higher = effect_of(outlier, series.cosine).value > 0
    workers = outlier.workers if higher else outlier.others
    first, last = int(series.steps[outlier.first]), int(series.steps[outlier.last])
    ranks = {series.ranks[worker] for worker in workers}
    groups = [members for members in comparable_groups(series) if set(workers) <= set(members)]
    copies = [close for members in groups for close in copies_among(series, budget, members)]
    return any(ranks <= set(close.ranks) and close.first <= last and first <= close.last for close in copies)


def _finding(series: WorkerSeries, outlier: Outlier) -> Finding:
    place = where_differing(series, outlier)
    difference = effect_of(outlier, place.values)
    mine = effect_of(outlier, place.values, mean_of_workers).value
    step = int(series.steps[outlier.first])
    others = "ranks that differ from them" if outlier.undecided else "others"
    return gradient_finding(
        series,
        outlier,
        place,
        f"{of_ranks(['gradient'], named(series, outlier), verbs=('has', 'have'), where=place.clause)} a mean cosine "
        f"of {mine:.2g} to the mean of the others {when(series, outlier)}; "
        f"the {others} have {mine - difference.value:.2g}",
        code=CODE,
        sizes=(mine, mine - difference.value, "mean cosine to the mean of the other workers' gradients"),
        interval=difference.interval(),
        advice=(
            f"Look for a sign, a mask or a loss term that only {subject(series, outlier)} has, and at the samples and "
            f"labels that it read at step {step} and after.",
        ),
        interval_of="the difference in cosine",
        num_steps=difference.num_steps,
    )
