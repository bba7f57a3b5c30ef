"""The gap between engine and trainer grows as training goes on.

What it finds
-------------
Sequences whose log-probabilities come to be further apart on the two sides than those of the first steps were.

Why it matters
--------------
Rounding stays as it is. A gap that grows with each update is that of weights which do not all reach the engine, of a
cache that is not cleared, of scales of a quantised engine that were calibrated once.

How it decides
--------------
The first 64 sequences (of 2 steps or more) are the yardstick: 90 % of them have a gap below some value. Healthy later
sequences are beyond twice that value in less than one case of five, with room for a policy that sharpens, as the gap is
per 1 - p (see `logprob-gap`); that they are so more often is an e-process under the budget of the checks of rollouts.
All later sequences together have to be apart by more than twice what the first were.
Sequences of the trainer's own weights are compared, as far as versions are known; gaps below what float32 rounds to
(1e-5) count as that. It grows *gradually* where three steps or more are between twice that value and a third of the
largest gap, as with updates that do not arrive.

What it may miss
----------------
What is wrong from the first step on; growth by less than two.

Example
-------
The gap between engine and trainer is 3.1 times that of the first steps since step 40.

Wrong and right
---------------
Wrong:

```python
engine.load_weights((n, p) for n, p in model.named_parameters() if "lora" in n)  # the base is trained as well
```

Right:

```python
engine.load_weights(model.named_parameters())
```
"""

from __future__ import annotations

import numpy as np

from trueline.laws.rollouts.evidence import find_excess, finding, ratio_of_sums, times_text
from trueline.laws.rollouts.gap_begins import FLOOR
from trueline.laws.rollouts.gap_shape import shape_kinds
from trueline.laws.rollouts.gaps import ceiling_of, on_policy
from trueline.laws.rollouts.rows import Rows, by_step, rows_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "logprob-gap-grows"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

YARDSTICK = 64
"""Sequences that the later ones are compared with."""
FACTOR = 2.0
CHANCE = 0.2
ON_THE_WAY = 3
"""Steps between the usual and the largest gap."""


def check(run: Run) -> list[Finding]:
    """The finding of a gap that grows; raises ``CannotTell`` where there are too few sequences."""
    rows = on_policy(rows_of(run))
    steps = np.unique(rows.step)
    counts = np.searchsorted(rows.step, steps, side="right")
    enough = np.flatnonzero((counts >= YARDSTICK) & (np.arange(len(steps)) >= 1))
    if not len(enough) or enough[0] + 1 >= len(steps):
        raise CannotTell(
            f"{counted(len(rows), 'sequence')} of {counted(len(steps), 'step')} {'is' if len(rows) == 1 else 'are'} "
            f"there, and it takes {YARDSTICK} of two steps to compare "
            "later ones with",
            reason="too-few-steps",
        )
    last = int(steps[enough[0]])
    first = rows.subset(rows.step <= last)
    later = rows.subset(rows.step > last)
    usual = max(float(np.nanquantile(first.gap, 0.9)), FLOOR)
    crossing = find_excess(run, "grows", later, later.gap > FACTOR * usual, chance=CHANCE)
    if crossing is None:
        return []
    blamed = crossing.select(later)
    before = ratio_of_sums(first.sums["beyond"], first.sums["room"])
    now = ratio_of_sums(blamed.sums["beyond"], blamed.sums["room"])
    if not now > FACTOR * max(before, FLOOR):
        return []
    kinds = ["grows", *(["gradually"] if _is_gradual(rows, usual) else []), *shape_kinds(run, rows, ceiling_of(rows))]
    return [
        finding(
            CODE,
            f"The gap between engine and trainer is {times_text(now / max(before, FLOOR))} times that of steps "
            f"{int(steps[0])}-{last} since step {crossing.first}.",
            crossing,
            measured=now,
            expected=max(before, FLOOR),
            unit="mean |d| over mean 1 - p",
            evidence={"kind": kinds},
            next=(
                "Compare all weights on both sides after a sync: rl.record_sync(step, model.named_parameters(), "
                "engine).",
                "Train some steps at learning rate 0: a gap that stops growing is one of the weights, one that grows "
                "on "
                "is one of the engine (its cache, its scales).",
            ),
        )
    ]


def _is_gradual(rows: Rows, usual: float) -> bool:
    """True if several steps are on the way from what was usual to the largest gap."""
    _, beyond_T = by_step(rows, rows.sums["beyond"])
    _, room_T = by_step(rows, rows.sums["room"])
    gap_T = beyond_T / np.maximum(room_T, 1e-9)
    return int(((gap_T > FACTOR * usual) & (gap_T < gap_T.max() / 3)).sum()) >= ON_THE_WAY
