"""From some step on the whole model trains in evaluation mode, and before it did not.

What it finds
-------------
`model.eval()` for a validation or a sample, and no `model.train()` after it. Where all ranks do so, comparing them
shows nothing; where some do, `rank-config-differs` reports it.

Why it matters
--------------
Dropout is off and batch normalisation uses, and no longer updates, its running statistics: what trains from there on is
another model, which overfits or drifts away from its statistics. The loss often falls at first.

How it decides
--------------
By what is there: at sampled steps the mode of every module in the forward pass. It is a warning where all modules of a
model that has dropout or batch normalisation are in evaluation mode at three sampled steps or more, to the last, on all
ranks, and were not before; or where that is so for three sampled steps or more again and again, each time until
something calls `train()`, as the next epoch may. Once is left alone: a phase of a schedule may want it. A model that is
so from the first step on, as those that are loaded for inference, is a note of the Run only, since many are fine-tuned
so on purpose; so is one of which some modules stay in training mode.

What it may miss
----------------
Modules that compute otherwise by a flag of their own; steps that were not sampled.

Example
-------
The whole model is in evaluation mode since step 200 on all ranks, and was not before: its dropout is off.

Wrong and right
---------------
Wrong:

```python
if step % 200 == 0:
    model.eval()
    validate(model)
```

Right:

```python
if step % 200 == 0:
    model.eval()
    validate(model)
    model.train()
```
"""

from __future__ import annotations

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks, numbers, sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "evaluation-mode"
CALLS = {"": ("eval",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("evaluates",)
ACROSS_RANKS = False

MIN_STEPS = 3
"""Sampled steps from which on it is no single pass."""
MIN_STRETCHES = 2
"""Stretches that end from which on it is no phase of a schedule."""


def check(run: Run) -> list[Finding]:
    """A Finding on stretches of steps in evaluation mode; raises ``CannotTell`` where no modes were seen."""
    ranks = data_parallel_ranks(run)
    evaluates_TN, measured_TN = numbers(run, "evaluates", ranks)
    seen_T = np.flatnonzero(measured_TN.all(axis=1))
    if not len(seen_T):
        raise CannotTell("no forward pass of a sampled step was seen", reason="not-recorded")
    steps, least_T = run.steps[seen_T], evaluates_TN[seen_T].min(axis=1)
    # One row is one stretch, from its first step to the one behind its last.
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], least_T == 1, [0]])))
    stretches = [
        (int(begin), int(end))
        for begin, end in bounds.reshape(-1, 2)
        if end - begin >= MIN_STEPS and begin and not evaluates_TN[seen_T[begin - 1]].any()
    ]
    # Stretches that end may be a phase of a schedule, unless they come again.
    if not stretches or (stretches[-1][1] < len(steps) and len(stretches) < MIN_STRETCHES):
        return []
    if stretches[-1][1] < len(steps):
        begin, end = stretches[0][0], stretches[-1][1]
        when = f"again and again, {counted(len(stretches), 'time')} from step {steps[begin]} to {steps[end - 1]}"
    else:
        begin, end = stretches[-1]
        when = f"since step {steps[begin]}"
    first, last = int(steps[begin]), int(steps[end - 1])
    return [
        Finding(
            code=CODE,
            severity="warning",
            claim=f"The whole model is in evaluation mode {when} on {ranks_text(ranks, all_ranks=ranks)}, "
            "and was not before: its dropout is off, and its batch normalisation uses running statistics.",
            ranks=tuple(ranks),
            step_first=first,
            step_last=last,
            sites=sites_of(first, ranks[:2], phase="fwd", names=("all",)),
            measured=1.0,
            expected=0.0,
            unit="whether the whole model is in evaluation mode",
            false_alarm_rate=0.0,
            evidence={"kind": "all-ranks", "onset_interval": [int(steps[begin - 1]) + 1, first]},
            next=(
                f"Look for what calls model.eval() before step {first}, and call model.train() when it is done.",
                "If dropout is to be off from there on, set its p to 0 instead, and leave the mode.",
            ),
        )
    ]
