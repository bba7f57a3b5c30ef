"""Gradients are clipped by a norm that is not theirs.

What it finds
-------------
A norm that `clip_grad_norm_` returns, or that `clip_grads_with_norm_` is given, and that is not the norm of the
gradients that it clips: that of each rank's own shard; one that is computed before a gradient scaler has divided by the
loss scale; any other number.

Why it matters
--------------
Clipping multiplies by max_norm / norm. With the norm of a shard gradients stay too large, by the root of the number of
shards, and shards are multiplied by different factors. With a norm that has the loss scale in it, every update is some
10,000 times too small, whatever the learning rate. And the norm is what people look at when a training goes wrong.

How it decides
--------------
By arithmetic. At the first 16 steps, and then at every 100th, the norm of the gradients is computed just before they
are clipped, on each rank, with sums in float32 or more, and added up over the ranks that hold shards of them. The norm
that they are clipped by may differ by 8 (u + u' √n), where u is the unit roundoff of the coarsest format in which it is
kept, u' that of float32, and n the number of elements of the largest gradient: rounding of a sum of n squares. Where
that norm is itself spread over ranks, it is read off what clipping multiplies by.

A larger norm than that of the gradients in this Run is a finding only where no other rank holds a part of the model.
Gradients that still have the loss scale are one where the scaler divides them later, before the same update, and where
the largest norm that is asked for is far below the one that they are clipped by (by more than the root of the scale) at
every sampled step: who multiplies that by the scale as well is right.

What it may miss
----------------
Norms of another order than 2; norms that frameworks clip by with their own functions (DeepSpeed, Megatron, FSDP1's
`clip_grad_norm_`), or that a script computes and multiplies by itself, also through `clip_grads_with_norm_` if it has
imported that by name; what is only logged. Norms of a part of the parameters are right for that part.

Example
-------
Gradients were clipped on ranks 0-1 at steps 0-11 by the norm of each rank's own shard, 0.707 times their norm.

Wrong and right
---------------
Wrong:

```python
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```

Right:

```python
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from trueline.judge.series.clip_calls import ClipCall, ClipNorm, clip_calls, clip_norms
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text, steps_text
from trueline.store.reader import Run

CODE = "norm-misreported"
CALLS = {"": ("clip_grad_norm_",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("clip_facts", "clip_values")
ACROSS_RANKS = False

ClipNormFault = Literal["own-shard", "scaled", "other"]


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which norms are wrong; raises ``CannotTell`` where no call was seen that tells."""
    norms = [norm for norm in clip_norms(run) if norm.call.norm_type in (2.0, None)]
    if not norms:
        raise CannotTell(
            "of the calls that clip by a norm, none shows a 2-norm of gradients of which this Run has all",
            reason="undecidable",
        )
    is_complete = len(run.ranks) == run.manifest.world_size
    calls = [call for call in clip_calls(run) if call.norm_type in (2.0, None) and math.isfinite(call.clipped_by)]
    scaled = [call for call in calls if _is_scaled(call)]
    # Where max_norm has the scale in it, too, clipping before unscale_ is right.
    if not all(call.max_norm * math.sqrt(call.scale) < call.clipped_by for call in scaled):
        scaled = []
    wrong: dict[ClipNormFault, list[ClipNorm]] = {"own-shard": [], "scaled": [], "other": []}
    for norm in norms:
        fault = "scaled" if scaled and _is_scaled(norm.call) else _fault(norm, is_complete=is_complete)
        if fault is not None:
            wrong[fault].append(norm)
    judged = [norm.call for norm in norms]
    return [
        _finding("scaled", faulty, scaled, calls)
        if fault == "scaled"
        else _finding(fault, faulty, [norm.call for norm in faulty], judged)
        for fault, faulty in wrong.items()
        if faulty
    ]


def _is_scaled(call: ClipCall) -> bool:
    return call.scaled and call.scale > 1


def _fault(norm: ClipNorm, *, is_complete: bool) -> ClipNormFault | None:
    """Fault of a norm, None for none; ``is_complete`` says that the Run has all ranks of the job."""
    slack = norm.call.slack
    low, high = norm.whole * (1 - slack), norm.whole * (1 + slack)
    if low <= norm.clipped_by <= high or slack >= 1:
        return None
    if norm.of_rank < low and abs(norm.clipped_by - norm.of_rank) <= slack * norm.of_rank:
        return "own-shard"
    # A larger norm may be that of gradients on ranks that this Run has not.
    return "other" if norm.call.norm_type == 2 and (norm.clipped_by < low or is_complete) else None


def _finding(
    fault: ClipNormFault, wrong: Sequence[ClipNorm], affected: Sequence[ClipCall], judged: Sequence[ClipCall]
) -> Finding:
    """The Finding on the ``affected`` calls of those that were ``judged``; ``wrong`` are their norms that are known."""
    steps, ranks = sorted({call.step for call in affected}), tuple(sorted({call.rank for call in affected}))
    when = steps_text(steps, among=[call.step for call in judged])
    ratios = [norm.call.scale if fault == "scaled" else norm.clipped_by / norm.whole for norm in wrong]
    factor = float(np.median(ratios))

    how = {
        "own-shard": f"by the norm of each rank's own shard, {factor:.3g} times their norm",
        "scaled": f"before the gradient scaler had divided them by {factor:g}, so that their norm after that is "
        f"{wrong[0].call.max_norm / factor:.2g} where {wrong[0].call.max_norm:g} was asked for",
        "other": f"by {factor:.4g} times their norm",
    }[fault]
    advice = {
        "own-shard": "Add up the squared norms over the ranks that hold shards (all_reduce) before the root is taken, "
        "or give clip_grad_norm_ the parameters themselves, not their local parts; of FSDP1, call the model's own "
        "clip_grad_norm_.",
        "scaled": "Call scaler.unscale_(optimizer) before clip_grad_norm_.",
        "other": "Look at how the norm is computed that clip_grads_with_norm_ is given: over which parameters, when, "
        "and whether anything is counted more than once.",
    }
    return Finding(
        code=CODE,
        severity="error",
        claim=f"Gradients were clipped on {ranks_text(ranks)} at {when} {how}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=factor,
        expected=1.0,
        unit="norm that was clipped by, over that of the gradients",
        false_alarm_rate=0.0,
        evidence={"kind": fault, "by": wrong[0].clipped_by, "was": wrong[0].whole, "num_steps": len(steps)},
        next=(advice[fault],),
    )
