"""The gradient of the whole run, of one parameter group, or of one parameter jumps up at a step.

What it finds
-------------
Steps at which the norm of the mean gradient, of one parameter group, or of one parameter rises further above its recent
level than its history explains: when, by how much, in which groups and parameters, and where backward was first.

Why it matters
--------------
One step with a gradient a hundred times too large moves the weights, and the running second moments of Adam, further
than a thousand good ones. Clipping hides it in the loss and scales everything else down. Which parameters it is in
points to a layer: an embedding that a rare token reaches through a normalisation, an output head, one attention layer.

How it decides
--------------
As `loss-spike` does, the logarithm of a norm is compared with its own history: the level is the median of the last 16
steps, the spread that of the last 64, and a step is reported that exceeds the last 1,000 by more than the law of their
tail allows (`judge/stats/peaks_over_threshold.py`). The budget is `false_alarms` of the plan (default 0.1) in 10,000
healthy steps for all checks of jumps together, a quarter of it for the whole gradient, an eighth split over the
parameter groups and a sixteenth for all parameters, of which the highest score of each step is judged as one series.
`studies/spikes` measures how many alarms healthy trainings raise.

Norms are of the mean gradient before clipping, or, where that was not measured, the root mean square of the workers';
those of parameters are always that. Jumps of several series at the same time are one finding: it names the groups that
jumped, or else those that hold most of the increase. Where parameters jumped, it names these, in the order of backward,
so that the first is where a jump that is passed on came from; else those that hold most of the increase of the workers'
own gradients.

The history restarts where the learning rate rises by more than a quarter at once, or the number of micro-batches
changes for good; single steps with another number are not judged. A norm that does not reach two and a half times its
level is no spike, so that a gradient scaler that doubles its scale is none. Norms that are not finite are left to
`worker-nonfinite` and `overflow-origin`.

What it may miss
----------------
The first 48 steps, and the first 48 after such a change. What has jumped before as far and more than a few times. A
jump of one worker among many, which the mean dilutes: see
`worker-grad-norm-outlier`. A slow rise. The parameters that are named describe the step: which of several it is, is
not covered by the false-alarm budget. Of very long Runs, parameters are judged at the last 16 million of their norms.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trueline.judge.actions import record_step
from trueline.judge.compared_ranks import Floats, sites_of
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.peaks_over_threshold import (
    LEVEL_STEPS,
    Spike,
    find_spikes,
    find_spikes_of_many,
    num_judged,
)
from trueline.laws.jumps.restarts import describe_restart
from trueline.laws.jumps.run_series import (
    ParamNorms,
    WholeRun,
    false_alarm_rate,
    log_level,
    logs,
    param_norms,
    whole_run,
)
from trueline.laws.jumps.spike_finding import evidence, jump_text, require_steps, surest
from trueline.laws.jumps.steady import Steady
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
    "loss",
    "param_digests",
    "closing_digests",
)
ACROSS_RANKS = False

LEAST = 2.5
"""Times its level that a norm must reach to be called a spike."""

FOLLOWS = Steady("norms", LEAST)

_NAMED_FRACTION = 0.5
"""Fraction of what was added to the squared norm that the named groups or parameters hold at least."""


@dataclass(frozen=True)
class _Jump:
    """A jump of the whole gradient, of one group, or of one parameter (``param``)."""

    spike: Spike
    group: int | None = None
    param: int | None = None

    def meets(self, jump: _Jump) -> bool:
        """True where both last over a common step."""
        return self.spike.first <= jump.spike.last and jump.spike.first <= self.spike.last


def check(run: Run) -> list[Finding]:
    """A warning for each place where gradients jumped; raises ``CannotTell`` where no step can be judged."""
    findings = judge(whole_run(run), alarm_budget_of(run), param_norms(run))
    return [describe_restart(run, finding) for finding in findings]


def judge(series: WholeRun, budget: AlarmBudget, params: ParamNorms | None = None) -> list[Finding]:
    """A warning for each place of ``series`` where gradients jumped; without ``params`` only groups are judged."""
    log_T, log_TG = logs(series.norm), logs(series.group_norm)
    require_steps(log_T, series, "a gradient norm above zero")
    jumps = _find_jumps(log_T, log_TG, series, budget)
    if params is not None:
        jumps = sorted([*jumps, *_find_param_jumps(params, series, budget)], key=lambda jump: jump.spike.first)
    events_by_groups: dict[tuple[str, ...], list[list[_Jump]]] = {}
    # Jumps of one set of groups are one finding, however often it jumped.
    for event in _events(jumps):
        events_by_groups.setdefault(_moved_groups(series, event, params), []).append(event)
    return [_finding(series, names, events, params) for names, events in events_by_groups.items()]


def _find_jumps(log_T: Floats, log_TG: Floats, series: WholeRun, budget: AlarmBudget) -> list[_Jump]:
    """Jumps of the whole and of groups, in order of time; at one step, the whole first."""
    num_groups = log_TG.shape[1]
    measured = [g for g in range(num_groups) if np.isfinite(log_TG[:, g]).any()]
    find = partial(find_spikes, least=math.log(LEAST), starts=series.starts)
    jumps = [_Jump(spike) for spike in find(log_T, log_level=log_level(budget, "norm"))]
    group_level = log_level(budget, "groups", among=len(measured))
    for g in measured:
        jumps += [_Jump(spike, group=g) for spike in find(log_TG[:, g], log_level=group_level)]
    return sorted(jumps, key=lambda jump: jump.spike.first)


def _find_param_jumps(params: ParamNorms, series: WholeRun, budget: AlarmBudget) -> list[_Jump]:
    spikes = find_spikes_of_many(
        params.logs(series), log_level=log_level(budget, "params"), least=math.log(LEAST), starts=params.starts(series)
    )
    return [_Jump(params.in_run_steps(spike), param=spike.series_index) for spike in spikes]


def _events(jumps: Sequence[_Jump]) -> list[list[_Jump]]:
    """Jumps that meet in time, together."""
    events: list[list[_Jump]] = []
    for jump in jumps:
        if events and any(jump.meets(neighbour) for neighbour in events[-1]):
            events[-1].append(jump)
        else:
            events.append([jump])
    return events


def _moved_groups(series: WholeRun, event: Sequence[_Jump], params: ParamNorms | None) -> tuple[str, ...]:
    """The groups that jumped, or those of parameters that did where nothing else did; else, of the whole, those that
    hold most of what was added. Largest first.
    """
    first = min(jump.spike.first for jump in event)
    peak = max(event, key=lambda jump: jump.spike.value).spike.peak
    if params is not None and all(jump.param is not None for jump in event):
        groups = {params.groups[jump.param] for jump in event if jump.param is not None}
        return tuple(name for name in series.group_names if name in groups)
    jumped_groups = {jump.group for jump in event if jump.group is not None}
    added_G = _added_squares(np.square(series.group_norm[[*range(max(first - LEVEL_STEPS, 0), first), peak]]))
    order = sorted(range(len(added_G)), key=lambda g: -added_G[g])
    numbers = [g for g in order if g in jumped_groups] or _largest_shares(added_G)
    return tuple(series.group_names[g] for g in numbers)


def _added_squares(squared_SK: Floats) -> Floats:
    """[K] distance of the last row above the median of the others; 0 where that is not known."""
    finite_SK = np.nan_to_num(squared_SK, nan=0.0, posinf=0.0)
    before_K = np.median(finite_SK[:-1], axis=0) if len(finite_SK) > 1 else finite_SK[-1]
    return np.asarray(np.maximum(finite_SK[-1] - before_K, 0.0), dtype=np.float64)


def _largest_shares(added_K: Floats) -> list[int]:
    """The fewest columns that hold most of what was added, largest first; none where nothing was."""
    total = float(added_K.sum())
    columns: list[int] = []
    for k in sorted(range(len(added_K)), key=lambda k: -float(added_K[k])):
        if total <= 0 or float(added_K[columns].sum()) >= _NAMED_FRACTION * total:
            break
        columns.append(k)
    return columns


def _finding(
    series: WholeRun, groups: tuple[str, ...], events: Sequence[Sequence[_Jump]], params: ParamNorms | None
) -> Finding:
    leading_jumps = [_leading_jump(event) for event in events]
    spikes = [jump.spike for jump in leading_jumps]
    steps = [int(series.steps[spike.first]) for spike in spikes]
    names = () if params is None else _param_names(params, leading_jumps[0], groups)
    names_text = f" (in {named_some(names or groups)})" if names or groups else ""
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"The norm of {_subject_text(series, leading_jumps[0], params)} {jump_text(series, spikes)}{names_text}.",
        ranks=series.ranks,
        step_first=steps[0],
        step_last=int(series.steps[spikes[-1].last]),
        sites=sites_of(steps[0], series.ranks[:1], phase="grad", names=names or groups or ("all",)),
        measured=math.exp(spikes[0].value),
        expected=math.exp(spikes[0].level),
        unit="L2 norm of the mean gradient"
        if series.of_mean and leading_jumps[0].param is None
        else "root mean square of the workers' L2 norms",
        false_alarm_rate=_alarm_rate(series, leading_jumps, params),
        evidence={
            "num_workers": len(series.ranks),
            "groups": list(groups[:100]),
            "params": list(names[:100]),
            **evidence(series, spikes),
        },
        next=(
            f"Look at the samples of step {steps[0]}: a rare token, a very short or a repeated sequence?",
            "Record that step again, from a checkpoint before it: the first gradient that is large, in the order of "
            f"backward, is where it comes from: {record_step(steps[0])}",
        ),
    )


def _leading_jump(event: Sequence[_Jump]) -> _Jump:
    """The jump that an event is reported as: the group with the highest ratio, the whole where no group jumped, or a
    parameter where neither did.
    """
    return max(event, key=lambda jump: (jump.group is not None, jump.param is None, jump.spike.ratio))


def _subject_text(series: WholeRun, jump: _Jump, params: ParamNorms | None) -> str:
    if jump.param is not None and params is not None:
        return f"the gradient of {params.names[jump.param]}"
    return "the gradient" if jump.group is None else f"the gradient of {series.group_names[jump.group]}"


def _alarm_rate(series: WholeRun, jumps: Sequence[_Jump], params: ParamNorms | None) -> float:
    surest_spike = surest([jump.spike for jump in jumps])
    jump = next(jump for jump in jumps if jump.spike is surest_spike)
    if jump.param is not None and params is not None:
        return false_alarm_rate(surest_spike.log_p, "params", among=1, num_steps=len(params.indices))
    values_T = logs(series.norm if jump.group is None else series.group_norm[:, jump.group])
    among = 1 if jump.group is None else int(np.count_nonzero(np.isfinite(series.group_norm).any(axis=0)))
    kind = "norm" if jump.group is None else "groups"
    return false_alarm_rate(surest_spike.log_p, kind, among=among, num_steps=num_judged(values_T, series.starts))


def _param_names(params: ParamNorms, jump: _Jump, groups: Sequence[str]) -> tuple[str, ...]:
    """The parameters of ``groups`` (of all, where there are none) that jumped, in the order of backward; where none
    did, those that hold most of what was added.
    """
    is_inside_P = np.array([group in groups or not groups for group in params.groups], dtype=np.bool_)
    first_row = params.row_of(jump.spike.first)
    if first_row is not None:
        rise_P = np.where(is_inside_P, params.rise(first_row), 0.0)
        least_rise = max(float(rise_P.max(initial=0.0)) / 2, math.log(LEAST))
        if (rise_P >= least_rise).any():
            return params.backward_order(np.flatnonzero(rise_P >= least_rise).tolist())
    # No parameter rose by much: then the few that hold most of the rise of all.
    peak_row = params.row_of(jump.spike.peak)
    if peak_row is None:
        return ()
    added_P = _added_squares(params.squared[max(peak_row - LEVEL_STEPS, 0) : peak_row + 1])
    return tuple(params.names[p] for p in _largest_shares(np.where(is_inside_P, added_P, 0.0)))
