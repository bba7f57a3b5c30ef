"""The loss of the whole run jumps up at a step.

What it finds
-------------
Steps at which the workers' mean loss rises further above its recent level than its history explains: when, from what
to what, and whether and when it came back.

Why it matters
--------------
A spike costs steps, and may be the first sign of an instability that ends the run: an unusual batch, a learning rate
that is too high, a lost optimizer state, an overflow. The finding says which step to look at; the cause is in what went
into that step.

How it decides
--------------
The logarithm of the mean loss is compared with its own history: its level is the median of the last 16 steps, its
spread is that of the last 64, and a step is reported that is further up than the last 1,000 make likely. How unlikely
it is follows from their tail, the largest 10 of them: if steps are exchangeable with those before, and the largest
excesses of a logarithm are exponential (a power law of the loss, of any index, so heavy-tailed batches are within it),
the probability is exact for any number of steps (`judge/stats/peaks_over_threshold.py` has the law). The budget is
`false_alarms` of the plan (default 0.1) in 10,000 healthy steps for the three checks of jumps together, half of it for
this one; the checks that compare workers have another budget of the same size, and each exact check that counts adds at
most 1e-6 a Run. Steps of a run are not quite exchangeable: `studies/spikes` measures how many alarms healthy
trainings raise.

The history restarts where the learning rate rises by more than a quarter at once, or the number of micro-batches
changes for good: what follows is intended. Not judged are steps with less than half of the usual number of tokens, and
single ones with another number of micro-batches (the short window at the end of an epoch; the two batches of a step
whose first update a gradient scaler left out). Nor is a rise of less than a quarter of the loss called a spike, however
quiet the run.

A jump at the first step of a start that goes on with the Run is a finding by itself, which says whether the weights
there are those that the start before had left, by their digests.

What it may miss
----------------
The first 48 steps, and the first 48 after such a change: the others are compared with them. With a short history, only
a large jump can be distinguished from chance. A slow rise. What has jumped before as far and more than a few times: it
is usual then. Losses that are zero or negative. Jumps that come with the data are reported as well (a curriculum in
stages, another data set, the first of some batches that are much harder), as nothing in a Run says that they were
intended.

Example
-------
The mean loss of 4 workers jumped from 2.31 to 5.02 at step 412, 9.4 times its usual spread, and came back after step
431.

Wrong and right
---------------
Wrong:

```python
model.load_state_dict(checkpoint["model"])  # the optimizer forgets, and the schedule starts at its top
```

Right:

```python
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trueline.judge.compared_ranks import sites_of
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.peaks_over_threshold import Spike, find_spikes, num_judged
from trueline.laws.jumps.restarts import describe_restart
from trueline.laws.jumps.run_series import WholeRun, false_alarm_rate, log_level, logs, whole_run
from trueline.laws.jumps.spike_finding import evidence, jump_text, require_steps, surest
from trueline.laws.jumps.steady import Steady
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "loss-spike"
QUESTION = "jumps"
NEEDS: tuple[str, ...] = (
    "loss",
    "lr",
    "num_micro",
    "tokens",
    "grad_norm",
    "group_grad_norms",
    "group_reduced_norms",
    "reduced_norm",
    "param_digests",
    "closing_digests",
)
ACROSS_RANKS = False

LEAST = 1.25
"""Times its level that a loss must reach to be called a spike."""

FOLLOWS = Steady("loss", LEAST)


def check(run: Run) -> list[Finding]:
    """A warning on the jumps of the loss; raises ``CannotTell`` where no step has enough others before it."""
    findings = judge(whole_run(run), alarm_budget_of(run), restarts=run.restarts)
    return [describe_restart(run, finding) for finding in findings]


def judge(series: WholeRun, budget: AlarmBudget, *, restarts: Sequence[int] = ()) -> list[Finding]:
    """A warning on the jumps of ``series``; those at the first step of one of ``restarts`` each have their own."""
    log_T = logs(series.loss)
    require_steps(log_T, series, "a loss above zero")
    spikes = find_spikes(log_T, log_level=log_level(budget, "loss"), least=math.log(LEAST), starts=series.starts)
    # A jump at a restart has a cause of its own, and so a finding of its own.
    at_restarts = [[spike] for spike in spikes if series.steps[spike.first] in restarts]
    within_starts = [spike for spike in spikes if series.steps[spike.first] not in restarts]
    return [
        _finding(series, group, num_judged(log_T, series.starts)) for group in (within_starts, *at_restarts) if group
    ]


def _finding(series: WholeRun, spikes: Sequence[Spike], num_steps: int) -> Finding:
    num_workers, step = len(series.ranks), int(series.steps[spikes[0].first])
    subject = "The loss" if num_workers == 1 else f"The mean loss of {counted(num_workers, 'worker')}"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{subject} {jump_text(series, spikes)}.",
        ranks=series.ranks,
        step_first=step,
        step_last=int(series.steps[spikes[-1].last]),
        sites=sites_of(step, series.ranks, phase="loss", names=("loss",)),
        measured=math.exp(spikes[0].value),
        expected=math.exp(spikes[0].level),
        unit="loss",
        false_alarm_rate=false_alarm_rate(surest(spikes).log_p, "loss", among=1, num_steps=num_steps),
        evidence={"num_workers": num_workers, **evidence(series, spikes)},
        next=(
            f"Look at the samples of step {step} and at the learning rate there; `grad-spike` says which "
            "parameters' gradients jumped, if any did.",
            f"Train from a checkpoint before step {step} once more, without that batch: does the loss jump again?",
        ),
    )
