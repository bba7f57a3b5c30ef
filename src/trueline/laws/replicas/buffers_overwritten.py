"""Buffers that each rank changes by its own batch, and that DDP then overwrites with those of rank 0.

What it finds
-------------
A codebook, counts of its codes, a queue of keys, a running scale or a prior that is a buffer and follows the batch of
each rank, in a model that DDP wraps: DDP broadcasts the buffers of rank 0 at each forward pass, so that what the other
ranks have counted is lost.

Why it matters
--------------
The buffer follows the data of rank 0 alone: a quantiser on eight ranks sees an eighth of the batch, and uses fewer of
its codes. Nothing fails, and all ranks look alike when they are compared.

How it decides
--------------
By equality of digests, at the steps at which replicas are compared, three at least: a buffer is equal on all ranks as
the forward pass begins, as DDP has just broadcast it, and ranks have different ones before the update. Left alone are
buffers of batch normalisation, of which DDP's documentation says that rank 0's are used, running means and variances by
their names, and buffers that are not saved with the model. It is to be confirmed, as a buffer that is written anew in
each pass loses nothing.

What it may miss
----------------
State that is no buffer; models that no DDP wraps, whose buffers drift apart (`replica-drift`).

Example
-------
Buffers quantizer.embed, quantizer.embed_sum and quantizer.cluster_size follow each rank's own batch, and DDP replaces
those of rank 1 with rank 0's at the next forward pass: at each of 8 steps that were looked at.

Wrong and right
---------------
Wrong:

```python
self.cluster_size.lerp_(counts, 0.1)
```

Right:

```python
dist.all_reduce(counts)
self.cluster_size.lerp_(counts, 0.1)
```
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import several_workers, sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "buffers-overwritten"
QUESTION = "replicas"
NEEDS: tuple[str, ...] = ("buffer_digests",)
ACROSS_RANKS = True

MIN_STEPS = 3
"""Steps at which ranks differ, from which on it is no single initialisation by the first batch."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "running_std")
"""Last names of buffers that are statistics of a norm."""


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where DDP broadcasts no buffer, or at too few steps."""
    ranks = several_workers(run)
    names = run.env[ranks[0]].buffers if ranks[0] in run.env else []
    before, after = (run.lists(column, ranks=ranks) for column in ("buffer_digests", "changed_buffers"))
    steps = sorted({step for step, _ in after} & {step for step, _ in before})
    steps = [step for step in steps if all((step, rank) in before and (step, rank) in after for rank in ranks)]
    if len(steps) < MIN_STEPS:
        raise CannotTell("DDP broadcasts no buffer that forward passes change", reason="by-design")
    num_changed: NDArray[np.int64] = np.zeros(len(names), dtype=np.int64)
    num_apart = num_changed.copy()
    odd = set[int]()
    for step in steps:
        before_NB, after_NB = (np.array([rows[step, rank] for rank in ranks]) for rows in (before, after))
        if before_NB.shape != after_NB.shape or before_NB.shape[1] != len(names):
            continue
        changed_B = (after_NB != 0).all(axis=0) & (before_NB == before_NB[:1]).all(axis=0)
        apart_NB = changed_B & (after_NB != after_NB[:1])
        num_changed += changed_B
        num_apart += apart_NB.any(axis=0)
        odd |= {rank for rank, is_apart in zip(ranks, apart_NB.any(axis=1), strict=True) if is_apart}
    apart = [
        name
        for name, apart, changed in zip(names, num_apart.tolist(), num_changed.tolist(), strict=True)
        if apart >= MIN_STEPS and 2 * apart > changed and name.rpartition(".")[2] not in STATISTICS
    ]
    return [_finding(run, apart, ranks, odd, steps, int(num_apart.max()))] if apart else []


def _finding(run: Run, names: list[str], ranks: list[int], odd: set[int], steps: list[int], times: int) -> Finding:
    one = len(names) == 1
    when = f"at each of {counted(times, 'step')}" if times == len(steps) else f"at {times} of {len(steps)} steps"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{'Buffer' if one else 'Buffers'} {named_some(names)} {'follows' if one else 'follow'} each rank's own "
        f"batch, and DDP replaces {'that' if one else 'those'} of {ranks_text(sorted(odd))} with rank {ranks[0]}'s at "
        f"the next forward pass: {when} that were looked at.",
        ranks=tuple(sorted(odd)),
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=(names[0],)),
        measured=float(times),
        expected=0.0,
        unit="steps at which ranks leave different buffers",
        false_alarm_rate=None,
        evidence={"kind": "buffers", "buffers": names[:16], "steps": steps[:100]},
        next=(
            "Reduce what the buffer is made of over ranks (`dist.all_reduce(counts)`, or gather the samples) before it "
            "is written, so that all ranks write the same.",
        ),
    )
