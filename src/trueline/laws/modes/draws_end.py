"""The training draws random numbers up to an evaluation, and none after it.

What it finds
-------------
A layer that sets its own dropout to 0 in evaluation mode and never sets it back; an `eval()` of a part that the
`train()` after it does not reach, or a `train()` that somebody overrode.

Why it matters
--------------
From the first evaluation on the model trains without dropout: it overfits sooner than it was meant to. No number shows
it, and the configuration still says that there is dropout.

How it decides
--------------
By the states of torch's generators, of the device or else of the host, at the first forward pass of each sampled step
and at its update. It is for you to confirm where every step that was looked at drew up to an evaluation, eight or more,
and none has from then on to the end of the Run, eight or more. If steps drew by chance, those that did would be the
first of all once in 12,870 times (8 of 16), and an evaluation need not be there. Without an evaluation in between it is
taken for a schedule. Steps of several micro-batches count by the device alone, as loaders draw from the host between
these. Where the whole model stays in evaluation mode, `evaluation-mode` says so. Only the last start of the job counts.

What it may miss
----------------
Draws of one layer that end while another goes on; generators of the program's own; evaluations that do not call the
model, or were not looked at.

Example
-------
Forward passes drew random numbers up to step 29 and none from step 30 on (all ranks, to step 95), after an evaluation:
no part has a dropout above 0 any more, before it was up to 0.2.

Wrong and right
---------------
Wrong:

```python
if not self.training:
    self.dropout_p = 0.0
```

Right:

```python
dropout_p = self.dropout_p if self.training else 0.0
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import any_over, data_parallel_ranks, numbers, sites_of
from trueline.laws.modes.evaluations import seen_passes
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "draws-end"
CALLS = {"": ("eval",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("rng_drawn", "eval_modules", "evaluates", "evaluations")
ACROSS_RANKS = False

MIN_STEPS = 8
"""Steps that must draw, and as many that must not: of 16 the first 8 are those that drew once in 12,870 times."""
HOST, DEVICE = (0, 2), (1, 3)
"""Places in ``rng_drawn``, as the step began and after somebody seeded."""


@dataclass(frozen=True)
class _End:
    """The last step of a rank that drew, the first that did not, and how many modules were in evaluation mode at most
    before, and at least from then on.
    """

    last: int
    first: int
    evaluating_before: int
    evaluating_since: int


def check(run: Run) -> list[Finding]:
    """A Finding on draws that end; raises ``CannotTell`` where too few steps, or no evaluation, were looked at."""
    ranks = data_parallel_ranks(run)
    if not run.measured("rng_drawn").any():
        raise CannotTell("states that steps draw from were not recorded", reason="not-recorded")
    drawn_TNK, seen_TN = run.stack("rng_drawn", ranks=ranks)
    modules_TN, sampled_TN = numbers(run, "eval_modules", ranks)
    whole_TN, _ = numbers(run, "evaluates", ranks)
    micro_TN, _ = numbers(run, "num_micro", ranks)
    begin = int(np.searchsorted(run.steps, run.restarts[-1])) if len(run.restarts) else 0
    looked_TN = seen_TN & sampled_TN & (np.arange(len(run.steps)) >= begin)[:, None]
    if looked_TN.sum(axis=0).max(initial=0) < 2 * MIN_STEPS:
        raise CannotTell(f"fewer than {2 * MIN_STEPS} steps were looked at", reason="too-few-steps")
    evaluated = {rank: set[int]() for rank in ranks}
    for seen in seen_passes(run):
        if not seen.facts.training and seen.rank in evaluated:
            evaluated[seen.rank].add(seen.step)
    ends: dict[int, _End] = {}
    for n, rank in enumerate(ranks):
        end = None
        for places, is_of_host in ((DEVICE, False), (HOST, True)):
            draws_T = any_over(drawn_TNK[:, n, places] > 0, axis=1)
            rows = np.flatnonzero(looked_TN[:, n] & (micro_TN[:, n] == 1 if is_of_host else True))
            if draws_T[rows].any():
                end = _end(run.steps[rows], draws_T[rows], modules_TN[rows, n], whole_TN[rows, n])
                break
        if end is not None and any(end.last <= step <= end.first for step in evaluated[rank]):
            ends[rank] = end
    return [_finding(run, ends)] if ends else []


def _end(
    steps: NDArray[np.int64], draws_S: NDArray[np.bool_], modules_S: NDArray[np.float64], whole_S: NDArray[np.float64]
) -> _End | None:
    """Of the steps [S] that were looked at, where all draw up to one of them and none does from the next on."""
    num = int(draws_S.sum())
    if num < MIN_STEPS or len(steps) - num < MIN_STEPS or not draws_S[:num].all() or whole_S[num:].any():
        return None
    before, since = int(modules_S[:num].max()), int(modules_S[num:].min())
    return _End(int(steps[num - 1]), int(steps[num]), before, since)


def _finding(run: Run, ends: Mapping[int, _End]) -> Finding:
    ranks = tuple(sorted(ends))
    end = ends[ranks[0]]
    last = int(run.steps[-1])
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Forward passes drew random numbers up to step {end.last} and none from step {end.first} on "
        f"({ranks_text(ranks, all_ranks=run.ranks)}, to step {last}), after an evaluation: {_why(run, ranks[0], end)}.",
        ranks=ranks,
        step_first=end.first,
        step_last=last,
        sites=sites_of(end.first, ranks[:2], phase="fwd", names=("all",)),
        measured=0.0,
        expected=1.0,
        unit="share of steps that draw random numbers",
        false_alarm_rate=None,
        evidence={"kind": "evaluation", "onset_interval": [end.last + 1, end.first]},
        next=(
            "Look for a dropout probability that a forward pass in evaluation mode overwrites, and for an eval() that "
            "no train() follows.",
            "If a schedule ends dropout there, confirm it.",
        ),
    )


def _why(run: Run, rank: int, end: _End) -> str:
    more = end.evaluating_since - end.evaluating_before
    if more > 0:
        return f"{counted(more, 'module')} more than before {'stays' if more == 1 else 'stay'} in evaluation mode"
    looks = [(step, _largest(text)) for (step, at), text in sorted(run.texts("dropouts").items()) if at == rank]
    before = [p for step, p in looks if step <= end.last]
    since = [p for step, p in looks if step >= end.first]
    if before and since and before[-1] and not since[0]:
        return f"no part has a dropout above 0 any more, before it was up to {before[-1]:.3g}"
    return "dropout, or what else drew, is gone in training"


def _largest(text: str) -> float:
    """The largest probability of parts that are in training mode."""
    return max((float(p) for p, num, _ in json.loads(text) if num), default=0.0)
