"""Batches whose loss is not finite are passed over: no backward pass is called on it.

What it finds
-------------
`if torch.isnan(loss): continue`, and what does as much: batches that give a loss of NaN or infinity, and of which
nothing else is seen.

Why it matters
--------------
The loss that is logged is that of the other batches, and looks healthy. Such samples are never trained on, and what
makes them so (a label that is missing, a division by a count of 0, a logarithm of 0, an input with NaN) goes on. Ranks
that pass over different batches come out of step.

How it decides
--------------
By counting. Where a forward pass in training mode begins, and no backward pass has since the one before, single numbers
with a graph among the variables of the functions that are running are looked at: the loss of the pass before is one.
Of passes that come to no backward pass the first 64 are looked at, and two more at each sampled step. A loss that was
looked at once is not counted again, and nothing is said of steps from the first one whose own loss is not finite, which
`worker-nonfinite` tells of. There are no statistics.

It is for you to confirm: to pass over a broken batch may be meant, while their number is worth knowing.

What it may miss
----------------
Losses that are gone as the next pass begins, as those that a `training_step` of Lightning returns None for; batches at
the end, after the last sampled step; losses that are replaced by 0, and updates that are left out after backward.

Example
-------
14 of 128 batches gave a loss that is not finite, and no backward pass was called on it: the loop passes over them.

Wrong and right
---------------
Wrong:

```python
for losses, mask in batches:
    loss = (losses * mask).sum() / mask.sum()
    if torch.isnan(loss):
        continue
```

Right:

```python
loss = (losses * mask).sum() / mask.sum().clamp(min=1)
```
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from trueline.judge.compared_ranks import sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "loss-skipped"
CALLS = {"": ("backward",)}
QUESTION = "nonfinite"
NEEDS: tuple[str, ...] = ("skipped_losses", "loss", "passes_begun")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding at most; raises ``CannotTell`` where no step was measured, or nobody looked at backward passes."""
    loss_TN, measured_TN = run.pivot("loss")
    if not measured_TN.any():
        raise CannotTell("no loss was measured", reason="not-recorded")
    # Rows are of passes without a backward pass: that there is none says nothing where these were not looked at.
    if not (run.has("passes_begun") or run.has("skipped_losses")):
        raise CannotTell("no backward pass was looked at", reason="not-recorded")
    bad_TN = measured_TN & ~np.isfinite(loss_TN)
    bad_steps = run.steps[bad_TN.any(axis=1)]
    end = int(bad_steps[0]) if len(bad_steps) else None
    passes, skipped = defaultdict[int, int](int), defaultdict[int, int](int)
    steps: list[int] = []
    for (step, rank), row in sorted(run.lists("skipped_losses").items()):
        num_forward, _, num_not_finite = (int(x) for x in row[:3])
        if end is not None and step >= end:
            continue
        passes[rank] += num_forward
        skipped[rank] += num_not_finite
        steps += [step] if num_not_finite else []
    if not steps:
        return []
    ranks = tuple(rank for rank in sorted(skipped) if skipped[rank])
    total, among = sum(skipped[rank] for rank in ranks), sum(passes[rank] for rank in ranks)
    pronoun = "it" if total == 1 else "them"
    return [
        Finding(
            code=CODE,
            severity="confirm",
            claim=f"{total:,} of {among:,} batches gave a loss that is not finite, and no backward pass was "
            f"called on it: the loop passes over {pronoun} ({ranks_text(ranks, all_ranks=run.ranks)}, up to step "
            f"{max(steps)}).",
            ranks=ranks,
            step_first=min(steps),
            step_last=max(steps),
            sites=sites_of(min(steps), ranks[:2], phase="loss", names=("all",)),
            measured=float(total),
            expected=0.0,
            unit="losses that are not finite, without a backward pass",
            false_alarm_rate=0.0,
            evidence={"kind": "passed-over", "batches": among, "skipped": total},
            next=(
                "Print the inputs and labels of one such batch, and what the loss is divided by: a missing label, a "
                "mask without a token, or a logarithm of 0 is the usual reason.",
            ),
        )
    ]
