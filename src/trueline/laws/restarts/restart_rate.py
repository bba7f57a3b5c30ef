"""The learning rate at a restart does not go on from what it was.

What it finds
-------------
A first update after a restart whose learning rate is another than that of the last update before, by more than the rate
moves between any two other updates: to be confirmed.

Why it matters
--------------
A schedule that is made after the optimizer was loaded writes its own first rate into it. One that is not loaded begins
with its warm-up, or at its peak. Training goes on with weights of the end and the rate of another place of the
schedule, and what follows is computed from that.

How it decides
--------------
Exactly, from the rates of all updates. Left alone are rates that the command asks for (`--lr`) or to which they fall,
as where the step of a schedule of epochs falls on a restart, if the job never had them before; and schedules of torch
that go back to their beginning, which `schedule-differs` tells.

What it may miss
----------------
After a kill, a start whose checkpoint is of a step that nobody looked at. Rates that are off by less than the schedule
moves them elsewhere, as after a warm-up in few steps. A schedule of another length.

Example
-------
At the restart at step 60 the learning rate is 0.001, and it was 0.00585 at step 59, the last update before.

Wrong and right
---------------
Wrong:

```python
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler = CosineAnnealingLR(optimizer, T_max)  # writes its first rate into the optimizer
scheduler.load_state_dict(checkpoint["scheduler"])
```

Right:

```python
scheduler = CosineAnnealingLR(optimizer, T_max)
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueline.laws.restarts.rates import RatesAtStart, rates_at
from trueline.laws.restarts.taken_over import TakenOver, ranks_at, taken_over
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "restart-rate"
CALLS = {"": ("optimizer", "scheduler")}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr", "closing_digests", "param_digests")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding for each start with another rate; raises ``CannotTell`` where no rates can be compared."""
    pairs = [(start, rates) for start in taken_over(run) if (rates := rates_at(run, start)) is not None]
    if not pairs:
        raise CannotTell("no learning rates are known on both sides of a start")
    changed = {id(start): rates for start, rates in pairs if not (rates.is_meant or rates.went_back)}
    starts = [start for start, _ in pairs if id(start) in changed]
    return [_finding(of_step, changed[id(of_step[0])]) for of_step in ranks_at(starts).values()]


def _finding(starts: Sequence[TakenOver], rates: RatesAtStart) -> Finding:
    first = starts[0]
    ranks = tuple(start.rank for start in starts)
    group = int(np.argmax(np.abs(rates.after - rates.before)))
    before, after = float(rates.before[group]), float(rates.after[group])
    subject = f" of parameter group {group}" if len(rates.after) > 1 else ""
    digits = next(digits for digits in range(3, 18) if f"{after:.{digits}g}" != f"{before:.{digits}g}")
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"At the restart at step {first.step} the learning rate{subject} on {ranks_text(ranks)} is "
        f"{after:.{digits}g}, and it was {before:.{digits}g} at step "
        f"{rates.step_before}, {'whose weights it has' if first.repeats else 'the last update before'}.",
        ranks=ranks,
        step_first=first.step,
        step_last=first.step,
        measured=after,
        expected=before,
        unit="learning rate",
        false_alarm_rate=0.0,
        next=(
            "Make the scheduler first, then load the states of optimizer and scheduler: making one writes its first "
            "rate into the optimizer. If another rate is meant, nothing is wrong.",
        ),
    )
