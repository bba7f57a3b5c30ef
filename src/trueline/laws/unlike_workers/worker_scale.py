"""One worker's gradient is a healthy one times a factor.

What it finds
-------------
A rank whose gradient is c times what it would be, with c and its interval: a loss divided by another number of tokens
or accumulation steps, a loss weight or scaler that only this rank has, gradients summed where others average.

Why it matters
--------------
The rank's samples count c times. Nothing fails; the effective batch is not the configured one, and results depend on
the number of workers.

How it decides
--------------
First `worker-grad-norm-outlier` must detect the rank (same statistic, same budget, no further false alarms). Then it is
a scale if three equalities hold that a factor implies for any model: the shift of the log norm is the same in all
parameter groups; the direction is as healthy as the others'; the loss is either scaled by the same factor (recorded
after scaling) or unchanged (recorded before). Each is rejected at the level 1e-3, split over groups, and each must be
shown to hold within half of ln c, and within 0.2 (22 %), before a scale is claimed as an error; as a warning already
where the groups agree twice as closely and the loss is where a scale would put it, though too noisy to be sure. Such a
warning rests on 30 steps at least.
Harder data or noisy labels fail at least one of them: they change some groups more than others, turn the gradient, and
move the loss by another factor.

The factor is exp of the mean difference in log norm to the others, measured on the steps after the alarm, with a 95 % t
interval. The other checks do not report a loss or direction again that this explains. Until all three are decided,
`worker-grad-norm-outlier` reports the rank, with "scale": "cannot tell yet".

What it may miss
----------------
Factors near 1 take long: the equalities must be known to half of ln c. Where no losses, or fewer than two parameter
groups, are recorded, a scale cannot be distinguished from other causes. A change of the data that shifts all groups and
the loss by exactly the same factor is called a scale. A worker with far fewer tokens or samples has a larger gradient
norm by noise alone, by nearly the same factor in all groups; where a rank's number of them differs persistently,
nothing is called a scale, and `worker-grad-norm-outlier` says so. With two workers, which of them is scaled is
undecided unless their own histories show it.

Example
-------
The gradient of rank 3 is 1.1 times (1.08 to 1.12) what it should be since step 1240, in every parameter group, and so
is its loss.

Wrong and right
---------------
Wrong:

```python
accumulate = int(os.environ.get("ACCUMULATE", "1"))  # set on some nodes only
loss = criterion(model(inputs), targets) / accumulate
```

Right:

```python
loss = criterion(model(inputs), targets) / config.accumulate  # one file that all ranks read
```
"""

from __future__ import annotations

import math

from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.laws.unlike_workers.gradient_scale import Scale, scales
from trueline.laws.unlike_workers.outlier_finding import NamedOutlier
from trueline.laws.unlike_workers.quiet import Quiet
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.schema.finding import Finding
from trueline.schema.text.words import of_ranks
from trueline.store.reader import Run

CODE = "worker-scale"
CALLS = {"": ("backward",)}
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
    """An error for each worker whose gradient is scaled; raises ``CannotTell`` without norms to compare."""
    return judge(series_of(run), alarm_budget_of(run))


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """An error for each worker of ``series`` whose gradient is scaled; raises ``CannotTell`` as ``check`` does."""
    pure = [scale for scale in scales(series, budget) if scale.answer == "yes"]
    return [_finding(NamedOutlier(series, scale.outlier), scale) for scale in pure]


def _finding(outlier: NamedOutlier, scale: Scale) -> Finding:
    factor = math.exp(scale.log_factor.value)
    low, high = (math.exp(bound) for bound in scale.log_factor.interval())
    than = f"times that of {outlier.counterpart}" if outlier.is_undecided else "times what the others have"
    loss = "and so is its loss" if scale.is_loss_scaled else "while its loss is like the others'"
    return Finding(
        code=CODE,
        severity="warning" if outlier.is_undecided or scale.likely else "error",
        claim=outlier.claim(
            f"{of_ranks(['gradient'], outlier.ranks)} {factor:.3g} {than} ({low:.3g} to {high:.3g}) "
            f"{outlier.when_text}, in every parameter group, {loss}",
        ),
        sites=outlier.sites(("all",), phase="grad"),
        measured=factor,
        expected=1.0,
        unit="times the others' gradient",
        next=(
            f"Print what the loss of {outlier.subject} is divided by (tokens, micro-batches, workers) and any "
            f"weight or scaler it is multiplied by, at step {outlier.first_step}, and compare with "
            "another rank.",
        ),
        **outlier.fields(
            (low, high),
            num_steps=scale.log_factor.num_steps,
            loss_ratio=math.exp(scale.log_loss.value),
            kind=["loss-too" if scale.is_loss_scaled else "loss-same", *_power_of_two(factor)],
            loss_scaled=scale.is_loss_scaled,
            likely_only=scale.likely,
        ),
    )


def _power_of_two(factor: float) -> tuple[str, ...]:
    """``loss-scale`` for a factor as large as loss scales are, and one of their powers of two, to 2 %."""
    power = math.log2(factor)
    return ("loss-scale",) if abs(power) > 3.5 and abs(power - round(power)) < 0.03 else ()
