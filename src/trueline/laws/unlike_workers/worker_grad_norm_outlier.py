"""One worker's gradient is longer or shorter than the others'.

What it finds
-------------
A rank whose gradient norm before reduction, of the whole or of one parameter group, is larger or smaller than the
others' more often than chance allows; since when, by what factor, and in which groups. Noisy labels, harder data,
masked tokens, noise or wrong bits in one layer, or a layer that computes differently do that.

Why it matters
--------------
The mean over workers weighs each gradient by its length. A rank whose gradient is too long counts for several, one
whose gradient is too short counts for little.

How it decides
--------------
As `worker-loss-outlier` does, on the natural log of the norm: bets against the exchangeability of workers at each step,
added up over every start. The norm of the whole gradient has a sixth of the false-alarm budget (`false_alarms` per
10,000 healthy steps over all statistical checks), those of all parameter groups together a twelfth. A group is named
where its difference is beyond chance at the level 1e-3, split over the groups.

Where the evidence shows that the gradient is that of a healthy worker times a factor, `worker-scale` reports it, and
this check does not. `evidence.scale` says why it is no scale: "no", with what speaks against it, "cannot tell yet",
with what has not been measured long enough, or "cannot tell" where the rank has another number of tokens or samples,
for a mean over fewer of them is noisier, and its gradient longer. With n times as many, it is up to sqrt(n) times as
short: a factor between 1 / sqrt(n) and 1 is an information.

What it may miss
----------------
Shifts that are small against the spread between workers, and those in few elements of a large group: a stuck bit in one
element that changes no norm. A worker that now and then has fewer samples than the others (uneven last batches) is not
compared at these steps; from five in a row on it is, as it persists. A gradient that is missing is reported by
`worker-silent`. With two workers, which of the two ranks is faulty, unless their own histories show it.

Example
-------
The gradient of rank 3 is 1.4 times as long as the others' (most in head and embed) since step 1240.

Wrong and right
---------------
Wrong:

```python
memory = torch.cuda.get_device_properties(device).total_memory
max_length = 2048 if memory > 40e9 else 512  # the rank on the smaller GPU learns from short rows
```

Right:

```python
max_length = 2048
batches = torch.split(rows[:, :max_length], rows_that_fit)  # the smaller GPU takes more, smaller micro-batches
```
"""

from __future__ import annotations

import math
from dataclasses import replace

from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.intervals import Estimate
from trueline.laws.unlike_workers.gradient_scale import Scale, scales
from trueline.laws.unlike_workers.outlier_finding import NamedOutlier
from trueline.laws.unlike_workers.quiet import Quiet
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.schema.finding import Finding
from trueline.schema.text.words import of_ranks
from trueline.store.reader import Run

CODE = "worker-grad-norm-outlier"
QUESTION = "workers"
NEEDS: tuple[str, ...] = (
    "grad_norm",
    "group_grad_norms",
    "loss",
    "cosine_others",
    "group_cosine_others",
    "sample_digests",
    "tokens",
)
FOLLOWS = Quiet("norm")


def check(run: Run) -> list[Finding]:
    """A warning for each worker whose gradient norm stands out; raises ``CannotTell`` without norms to compare."""
    return judge(series_of(run), alarm_budget_of(run))


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """A warning for each worker of ``series`` whose norm stands out; raises ``CannotTell`` as ``check`` does."""
    impure = [scale for scale in scales(series, budget) if scale.answer != "yes"]
    return [_finding(NamedOutlier(series, scale.outlier), scale) for scale in impure]


def _finding(outlier: NamedOutlier, scale: Scale) -> Finding:
    groups = outlier.differing_groups
    log_ratio = outlier.effect(groups.values)
    ratio = math.exp(log_ratio.value)
    low, high = log_ratio.interval()
    peers = f"that of {outlier.counterpart}" if outlier.is_undecided else "the others'"
    counts, is_explained = _counts_clause(scale, log_ratio)
    finding = outlier.gradient_finding(
        f"{of_ranks(['gradient'], outlier.ranks)} {ratio:.3g} times as long as "
        f"{peers}{groups.clause} {outlier.when_text}{counts}",
        code=CODE,
        measured=ratio,
        expected=1.0,
        unit="times the others' gradient norm (geometric mean)",
        # exp(-inf) is 0, which would look like a bound that was measured.
        interval=(math.exp(low), math.exp(high)) if math.isfinite(low) else (low, high),
        advice=(
            f"Look at the samples, labels and masks that {outlier.subject} read at step {outlier.first_step} "
            "and after.",
            f"Compare the code path, precision and device of {outlier.subject} with another rank's"
            f"{', first in ' + groups.names[0] if groups.names != ('all',) else ''}.",
        ),
        num_steps=log_ratio.num_steps,
        scale=scale.answer,
        scale_because=list(scale.reasons),
    )
    return replace(finding, severity="info") if is_explained else finding


def _counts_clause(scale: Scale, log_ratio: Estimate) -> tuple[str, bool]:
    """A clause on another number of tokens or samples, and whether it explains ``log_ratio``, that of the norms."""
    if scale.log_counts is None:
        return "", False
    log_counts = scale.log_counts.value
    clause = f", on {math.exp(log_counts):.2g} times as many {scale.count_unit}"
    # A mean over n tokens that each pull their own way is shorter by sqrt(n); where all pull one way, by nothing.
    shorter = -log_counts / 2
    if min(shorter, 0.0) <= log_ratio.value <= max(shorter, 0.0):
        return f"{clause}, which explains it: a mean over more is less noisy", True
    return clause, False
