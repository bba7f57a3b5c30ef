"""The gradient of the whole run, or of one parameter group, jumps up at a step.

What it finds
-------------
Steps at which the norm of the mean gradient, or of one parameter group, rises further above its recent level than its
history explains: when, by how much, and in which groups and parameters.

Why it matters
--------------
One step with a gradient a hundred times too large moves the weights, and the running second moments of Adam, further
than a thousand good ones. Clipping hides it in the loss and scales everything else down. Which parameters it is in
points to a layer: an embedding that a rare token reaches through a normalisation, an output head, one attention layer.

How it decides
--------------
As `loss-spike` does, the logarithm of a norm is compared with its own history: the level is the median of the last 16
steps, the spread that of the last 64, and a step is reported that exceeds the last 1,000 by more than the law of their
tail allows (`analyze/stats/peaks_over_threshold.py`). The budget is `false_alarms` of the plan (default 0.1) in 10,000
healthy steps for both checks of spikes together, a quarter of it for the whole gradient and a quarter split over the
parameter groups. `benchmarks/spikes` measures how many alarms healthy trainings raise.

Norms are of the mean gradient before clipping, or, where that was not measured, the root mean square of the workers'.
Jumps of several series at the same time are one finding: it names the groups that jumped, or else those that hold most
of the increase. Within them, it names the parameters that hold most of the increase of the workers' own gradients.

The history restarts where the learning rate rises by more than a quarter at once, or the number of micro-batches
changes for good; single steps with another number are not judged. A norm that does not reach two and a half times its
level is no spike, so that a gradient scaler that doubles its scale is none. Norms that are not finite are left to
`worker-nonfinite` and `overflow-origin`.

What it may miss
----------------
The first 48 steps, and the first 48 after such a change. What has jumped before as far and more than a few times. A
jump of one worker among many, which the mean dilutes: see
`worker-grad-norm-outlier`. A slow rise. The parameters that are named describe the step and were chosen after the jump
was seen; the false-alarm budget does not cover them.

Example
-------
The norm of the gradient of embed jumped from 0.0456 to 81.2 at step 70, 132 times its usual spread, for that step alone
(in embed.weight).

Wrong and right
---------------
Wrong:

```python
loader = DataLoader(documents)  # some are one token, ten thousand times
```

Right:

```python
varied = [document for document in documents if len(set(document.tokens)) > 0.1 * len(document.tokens)]
loader = DataLoader(varied)
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trueline.analyze.compared_ranks import Floats, sites_of
from trueline.analyze.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.analyze.stats.peaks_over_threshold import LEVEL_STEPS, Spike, find_spikes, num_judged
from trueline.analyze.workers.run_series import (
    ParamNorms,
    WholeRun,
    false_alarm_rate,
    log_level,
    logs,
    param_norms,
    whole_run,
)
from trueline.analyze.workers.spike_finding import evidence, jump_text, require_steps, surest
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some
from trueline.store.reader import Run

CODE = "grad-spike"
QUESTION = "jumps"
NEEDS: tuple[str, ...] = (
    "reduced_norm",
    "group_reduced_norms",
    "grad_norm",
    "group_grad_norms",
    "param_grad_norms",
    "lr",
    "num_micro",
    "tokens",
)
ACROSS_RANKS = False

LEAST = 2.5
"""Times its level that a norm must reach to be called a spike."""

_MOST = 0.5
"""What is named holds at least this fraction of what was added to the squared norm."""

Params = Callable[[int], ParamNorms]
"""Of the index of a step: the norms of parameters at it and at the steps before it."""


@dataclass(frozen=True)
class _Jump:
    """One jump: of the whole gradient (``group`` None) or of one group."""

    group: int | None
    spike: Spike

    def meets(self, other: _Jump) -> bool:
        """Whether both last over a common step."""
        return self.spike.first <= other.spike.last and other.spike.first <= self.spike.last


def check(run: Run) -> list[Finding]:
    """A warning for each place where gradients jumped; raises ``CannotTell`` where no step can be judged."""

    def params(index: int) -> ParamNorms:
        return param_norms(run, range(max(index - LEVEL_STEPS, 0), index + 1))

    return judge(whole_run(run), alarm_budget_of(run), params)


def judge(series: WholeRun, budget: AlarmBudget, params: Params | None = None) -> list[Finding]:
    """The same of series; without ``params`` no parameter is named, only groups."""
    log_T, log_TG = logs(series.norm), logs(series.group_norm)
    require_steps(log_T, series, "a gradient norm above zero")
    by_place: dict[tuple[str, ...], list[list[_Jump]]] = {}
    for event in _events(_jumps(log_T, log_TG, series, budget)):
        by_place.setdefault(_groups_of(series, event), []).append(event)
    return [_finding(series, names, events, params) for names, events in by_place.items()]


def _jumps(log_T: Floats, log_TG: Floats, series: WholeRun, budget: AlarmBudget) -> list[_Jump]:
    """All jumps of all series, in order of time; at one step, the whole first."""
    num = log_TG.shape[1]
    measured = [g for g in range(num) if np.isfinite(log_TG[:, g]).any()]
    find = partial(find_spikes, least=math.log(LEAST), starts=series.starts)
    found = [_Jump(None, spike) for spike in find(log_T, log_level=log_level(budget, "norm"))]
    line = log_level(budget, "groups", among=len(measured))
    for g in measured:
        found += [_Jump(g, spike) for spike in find(log_TG[:, g], log_level=line)]
    return sorted(found, key=lambda jump: jump.spike.first)


def _events(jumps: Sequence[_Jump]) -> list[list[_Jump]]:
    """Jumps that meet in time, together."""
    events: list[list[_Jump]] = []
    for jump in jumps:
        if events and any(jump.meets(other) for other in events[-1]):
            events[-1].append(jump)
        else:
            events.append([jump])
    return events


def _groups_of(series: WholeRun, event: Sequence[_Jump]) -> tuple[str, ...]:
    """The groups that jumped; else, of the whole, those that hold most of what was added. Largest first."""
    first = min(jump.spike.first for jump in event)
    peak = max(event, key=lambda jump: jump.spike.value).spike.peak
    jumped = {jump.group for jump in event if jump.group is not None}
    added_G = _added(np.square(series.group_norm[[*range(max(first - LEVEL_STEPS, 0), first), peak]]))
    order = sorted(range(len(added_G)), key=lambda g: -added_G[g])
    chosen = [g for g in order if g in jumped] or _largest(added_G)
    return tuple(series.group_names[g] for g in chosen)


def _added(squared_SK: Floats) -> Floats:
    """[K] how far the last row is above the median of the others; 0 where that is not known."""
    known_SK = np.nan_to_num(squared_SK, nan=0.0, posinf=0.0)
    before_K = np.median(known_SK[:-1], axis=0) if len(known_SK) > 1 else known_SK[-1]
    return np.asarray(np.maximum(known_SK[-1] - before_K, 0.0), dtype=np.float64)


def _largest(added_K: Floats) -> list[int]:
    """The fewest that hold most of what was added, largest first; none where nothing was."""
    total = float(added_K.sum())
    chosen: list[int] = []
    for k in sorted(range(len(added_K)), key=lambda k: -float(added_K[k])):
        if total <= 0 or float(added_K[chosen].sum()) >= _MOST * total:
            break
        chosen.append(k)
    return chosen


def _finding(
    series: WholeRun, groups: tuple[str, ...], events: Sequence[Sequence[_Jump]], params: Params | None
) -> Finding:
    leading = [_leading(event) for event in events]
    spikes = [jump.spike for jump in leading]
    steps = [int(series.steps[spike.first]) for spike in spikes]
    names = _param_names(spikes[0].peak, params, groups)
    inside = f" (in {named_some(names or groups)})" if names or groups else ""
    group = leading[0].group
    whose = "the gradient" if group is None else f"the gradient of {series.group_names[group]}"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"The norm of {whose} {jump_text(series, spikes)}{inside}.",
        ranks=series.ranks,
        step_first=steps[0],
        step_last=int(series.steps[spikes[-1].last]),
        sites=sites_of(steps[0], series.ranks[:1], phase="grad", names=names or groups or ("all",)),
        measured=math.exp(spikes[0].value),
        expected=math.exp(spikes[0].level),
        unit="L2 norm of the mean gradient" if series.of_mean else "root mean square of the workers' L2 norms",
        false_alarm_rate=_rate(series, leading),
        evidence={
            "num_workers": len(series.ranks),
            "groups": list(groups[:100]),
            "params": list(names[:100]),
            **evidence(series, spikes),
        },
        next=(
            f"Look at the samples of step {steps[0]}: a rare token, a very short or a repeated sequence?",
            f"Record that step again from a checkpoint before it (`trueline run --plan mix`, steps = [{steps[0]}]): "
            "the first gradient that is large, in the order of backward, is where it comes from.",
        ),
    )


def _leading(event: Sequence[_Jump]) -> _Jump:
    """The jump that an event is reported as: the group with the highest ratio, or the whole where no group jumped."""
    return max(event, key=lambda jump: (jump.group is not None, jump.spike.ratio))


def _rate(series: WholeRun, jumps: Sequence[_Jump]) -> float:
    best = surest([jump.spike for jump in jumps])
    group = next(jump.group for jump in jumps if jump.spike is best)
    values_T = logs(series.norm if group is None else series.group_norm[:, group])
    among = 1 if group is None else int(np.count_nonzero(np.isfinite(series.group_norm).any(axis=0)))
    kind = "norm" if group is None else "groups"
    return false_alarm_rate(best.log_p, kind, among=among, num_steps=num_judged(values_T, series.starts))


def _param_names(index: int, params: Params | None, groups: Sequence[str]) -> tuple[str, ...]:
    """The parameters of ``groups`` (of all, where there are none) that hold most of what was added."""
    if params is None:
        return ()
    found = params(index)
    inside = np.array([group in groups or not groups for group in found.groups], dtype=np.bool_)
    added_P = np.where(inside, _added(found.squared), 0.0)
    return tuple(found.names[p] for p in _largest(added_P))
