"""The gradient of parameters falls at once, or is exactly zero from some step on.

What it finds
-------------
Parameters whose gradient falls at a step far below all that it was before, and those whose gradient is exactly zero at
several steps in a row after it never was: since when, by how much, in which parameters, and where backward was first.

Why it matters
--------------
What has no gradient does not learn, and nothing else shows it: the loss still falls, because the other parameters
learn. A layer that died (all of its ReLUs off), an activation that saturated, a `detach()` behind a condition, a scale
that is too small for float16, a mask that became empty.

How it decides
--------------
- **Falls.** As in `grad-spike`, the logarithm of each parameter's norm is compared with its own level and spread, here
  downwards, and the highest score of all parameters at each step is judged as one series
  (`judge/stats/peaks_over_threshold.py`). What is reported is less than 1 / 2.5 of the level, and less than ever
  before in the last 1,000 steps.
- **Exact zeros.** Of a norm that was not zero at n steps and is zero at the m steps since then: if steps are
  exchangeable, the probability that just the last m are the zeros is 1 / C(n + m, m). It is reported once that, times
  the number of parameters, is below the share: after seven steps early in a run, after three later.

  A bias of a zero gradient is left out where the weight beside it has one: what arrives there sums to zero, as the
  difference of two means does, and is not lost.

Each has 1/32 of the budget of jumps along time, which is `false_alarms` of the plan (default 0.1) in 10,000 healthy
steps. Several parameters at the same time are one finding. It names them in the order of backward: a gradient that is
lost on its way is lost for all parameters behind that, so the first is the place to look at.

Norms are the root mean square of the workers' own gradients. The history restarts where the learning rate rises by more
than a quarter at once, or the number of micro-batches changes for good. Steps whose loss is below a thousandth of what
it usually was in the 160 steps before are left out: where there is nothing to learn (all rewards of a policy gradient
equal, a margin that all samples keep) the gradient is zero too.

What it may miss
----------------
The first 48 measured steps. A gradient that fades over hundreds of steps, or that was zero from the start. A parameter
that has no gradient at all (`requires_grad` off, or no part in the loss) is not measured, and nothing is said of it. A
parameter whose gradient is zero on purpose from some step on, such as a layer that is frozen by setting its gradient to
zero, is reported: a Run does not say what was meant.

Example
-------
The gradient of layers.0.weight fell from 0.31 to 0.0012 at step 80, 41 times its usual spread, and had not come back by
step 95.

Wrong and right
---------------
Wrong:

```python
hidden = torch.sigmoid(100 * layer(x))  # saturates: its derivative is zero
```

Right:

```python
hidden = torch.sigmoid(norm(layer(x)))
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trueline.judge.actions import record_step
from trueline.judge.compared_ranks import Bools, Floats, sites_of
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.peaks_over_threshold import (
    HISTORY_STEPS,
    LEVEL_STEPS,
    STEPS_BEFORE,
    Spike,
    find_spikes_of_many,
    stretches,
)
from trueline.laws.jumps.run_series import (
    ParamNorms,
    WholeRun,
    false_alarm_rate,
    has_loss,
    log_level,
    param_norms,
    whole_run,
)
from trueline.laws.jumps.spike_finding import evidence, jump_text, require_steps
from trueline.laws.jumps.steady import Steady
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

CODE = "grad-vanishes"
QUESTION = "jumps"
NEEDS: tuple[str, ...] = (
    "param_grad_norms",
    "loss",
    "lr",
    "num_micro",
    "tokens",
    "grad_norm",
    "group_grad_norms",
    "group_reduced_norms",
    "reduced_norm",
)
ACROSS_RANKS = False

LEAST = 2.5
"""Times smaller than its level that a norm must be to be called vanished."""

FOLLOWS = Steady("falls", LEAST)


@dataclass(frozen=True)
class _Zeros:
    """Parameters whose norm is zero at the steps ``first`` to ``last`` of the S, after ``before`` at which none was."""

    params: tuple[int, ...]
    first: int
    last: int
    before: int
    log_p: float


def check(run: Run) -> list[Finding]:
    """A warning for each time that gradients vanished; raises ``CannotTell`` where no step can be judged."""
    return judge(whole_run(run), alarm_budget_of(run), param_norms(run))


def judge(series: WholeRun, budget: AlarmBudget, params: ParamNorms) -> list[Finding]:
    """A warning for each time that gradients of ``series`` vanished; raises ``CannotTell`` as ``check`` does."""
    # At a loss of next to nothing (a step without targets) gradients vanish, and nothing is lost.
    learns_S = has_loss(series.loss)[params.indices][:, None]
    log_SP = np.where(learns_S, params.logs(series), np.nan)
    largest_T = np.full(len(series.steps), np.nan)
    largest_T[params.indices] = np.where(np.isfinite(log_SP), log_SP, -np.inf).max(axis=1, initial=-np.inf)
    require_steps(largest_T, series, "norms of the gradients of parameters")
    starts = params.starts(series)
    zeros = _find_zeros(np.where(learns_S & ~_cancels(params), params.squared, np.nan), starts, budget)
    # Zeros are told by themselves: a norm that goes to zero also falls.
    falls = [
        fall
        for fall in _find_falls(log_SP, starts, budget)
        if not any(fall.first <= run_of_zeros.last and run_of_zeros.first <= fall.last for run_of_zeros in zeros)
    ]
    findings = [_fall_finding(series, params, fall) for fall in falls]
    return findings + [_zeros_finding(series, params, run_of_zeros) for run_of_zeros in zeros]


def _cancels(params: ParamNorms) -> Bools:
    """[S, P] biases of which the gradient is zero while that of the weight beside it is not. What arrives at that
    module is not zero, then; its sum is, as of a difference of two means over samples that a network takes alike.
    """
    at = {name: p for p, name in enumerate(params.names)}
    cancels_SP = np.zeros(params.squared.shape, dtype=np.bool_)
    for name, p in at.items():
        module, _, kind = name.rpartition(".")
        weight = at.get(f"{module}.weight") if kind == "bias" else None
        if weight is not None:
            cancels_SP[:, p] = (params.squared[:, p] == 0) & (params.squared[:, weight] > 0)
    return cancels_SP


def _find_falls(log_SP: Floats, starts: Sequence[int], budget: AlarmBudget) -> list[Spike]:
    """Falls to less than ever before, with levels and values as they are."""
    falls: list[Spike] = []
    level, least = log_level(budget, "falls"), math.log(LEAST)
    for fall in find_spikes_of_many(
        -log_SP, log_level=level, least=least, starts=starts
    ):  # a fall is a jump upside down
        lowest = np.nanmin(log_SP[max(fall.first - HISTORY_STEPS, 0) : fall.first, fall.series_index])
        if -fall.value < lowest:
            falls.append(replace(fall, level=-fall.level, value=-fall.value))
    return falls


def _find_zeros(squared_SP: Floats, starts: Sequence[int], budget: AlarmBudget) -> list[_Zeros]:
    """Runs of zeros of norms that were not zero before; those that meet in time are one."""
    level = log_level(budget, "zeros", among=squared_SP.shape[1])
    runs: list[_Zeros] = []
    for begin, end in stretches(len(squared_SP), starts):
        for p in np.flatnonzero((squared_SP[begin:end] == 0).any(axis=0)).tolist():
            measured = begin + np.flatnonzero(np.isfinite(squared_SP[begin:end, p]))
            is_zero = squared_SP[measured, p] == 0
            before = int(np.argmax(is_zero))
            nonzero = np.flatnonzero(~is_zero[before:])
            num_zeros = int(nonzero[0]) if len(nonzero) else len(is_zero) - before
            # 1 / C(before + num_zeros, num_zeros): were steps exchangeable, all zeros would come last that rarely.
            log_p = math.lgamma(before + 1) + math.lgamma(num_zeros + 1) - math.lgamma(before + num_zeros + 1)
            if before >= STEPS_BEFORE and log_p <= level:
                runs.append(_Zeros((p,), int(measured[before]), int(measured[before + num_zeros - 1]), before, log_p))
    merged: list[_Zeros] = []
    for run in sorted(runs, key=lambda run: run.first):
        if merged and run.first <= merged[-1].last:
            last, log_p = max(merged[-1].last, run.last), min(merged[-1].log_p, run.log_p)
            merged[-1] = replace(merged[-1], params=(*merged[-1].params, *run.params), last=last, log_p=log_p)
        else:
            merged.append(run)
    return merged


def _fall_finding(series: WholeRun, params: ParamNorms, fall: Spike) -> Finding:
    rise_P = params.rise(fall.first)
    fallen = np.flatnonzero(rise_P <= min(float(rise_P.min()) / 2, -math.log(LEAST))).tolist()
    names = params.backward_order(fallen or [fall.series_index])
    spike = params.in_run_steps(fall)
    names_text = f" (in {named_some(names)})" if len(names) > 1 else ""
    text = jump_text(series, [spike], verb="fell")
    return _finding(
        series,
        names,
        f"The norm of the gradient of {params.names[fall.series_index]} {text}{names_text}.",
        (int(series.steps[spike.first]), int(series.steps[spike.last])),
        measured=math.exp(fall.value),
        expected=math.exp(fall.level),
        alarm_rate=false_alarm_rate(fall.log_p, "falls", among=1, num_steps=len(params.indices)),
        evidence_fields=evidence(series, [spike]),
    )


def _zeros_finding(series: WholeRun, params: ParamNorms, zeros: _Zeros) -> Finding:
    names = params.backward_order(zeros.params)
    first, last = (int(series.steps[params.indices[index]]) for index in (zeros.first, zeros.last))
    level_S = np.sqrt(params.squared[max(zeros.first - LEVEL_STEPS, 0) : zeros.first, zeros.params[0]])
    num_params = len(names)
    return _finding(
        series,
        names,
        f"The gradient{'' if num_params == 1 else 's'} of {counted(num_params, 'parameter')} ({named_some(names)}) "
        f"{'is' if num_params == 1 else 'are'} exactly zero from step {first} to {last}, after {zeros.before} measured "
        f"steps at which {'it was' if num_params == 1 else 'they were'} not.",
        (first, last),
        measured=0.0,
        expected=float(np.nanmedian(level_S)),
        alarm_rate=false_alarm_rate(zeros.log_p, "zeros", among=len(params.names), num_steps=len(params.indices)),
        evidence_fields={"steps_before": zeros.before},
    )


def _finding(
    series: WholeRun,
    names: tuple[str, ...],
    claim: str,
    steps: tuple[int, int],
    *,
    measured: float,
    expected: float,
    alarm_rate: float,
    evidence_fields: dict[str, Any],
) -> Finding:
    return Finding(
        code=CODE,
        severity="warning",
        claim=claim,
        ranks=series.ranks,
        step_first=steps[0],
        step_last=steps[1],
        sites=sites_of(steps[0], series.ranks[:1], phase="grad", names=names),
        measured=measured,
        expected=expected,
        unit="root mean square of the workers' L2 norms",
        false_alarm_rate=alarm_rate,
        evidence={"num_workers": len(series.ranks), "params": list(names[:100]), **evidence_fields},
        next=(
            f"Look at what {names[0]} gives to the layers after it at step {steps[0]}: zeros, a saturated activation, "
            "an empty mask, a detached value?",
            "Record that step again, from a checkpoint before it: the first gradient that is small, in the order of "
            f"backward, is where it is lost: {record_step(steps[0])}",
        ),
    )
