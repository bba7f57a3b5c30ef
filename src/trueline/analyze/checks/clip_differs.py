"""Clipping does not multiply all gradients that it is given by one factor, or is given none.

What it finds
-------------
A call of `clip_grad_norm_` that finds no gradient, and so clips nothing: its list of parameters is a generator that
something else has used up, or it comes before the backward pass, or gradients are kept elsewhere. And elements of
gradients that are not multiplied by min(1, max_norm / norm): a kernel that skips some, a patched function.

Why it matters
--------------
The training runs without the clipping that its settings declare, until the first spike. Where some elements are left
out, the direction of the update changes.

How it decides
--------------
By arithmetic. At the first 16 steps, and then at every 20th, later every 100th, 16 neighbouring elements of up to 32
gradients are copied before and after each call. Each may differ by 8 u times its magnitude from what the one factor
makes of it, where u is the unit roundoff of the coarsest format among gradient, norm and factor. A call finds nothing
where none of its parameters has a gradient, it has all of the model's parameters or none, no other call of that step
finds any, and the step has a gradient.

Ranks that clip differently from each other are told by `reduction-mismatch`, and a wrong norm by `norm-misreported`.

What it may miss
----------------
Elements and steps that were not sampled; clipping that frameworks or scripts do without these functions of torch.

Example
-------
clip_grad_norm_ was given no parameters on rank 0 at steps 1-11, and clipped nothing.

Wrong and right
---------------
Wrong:

```python
parameters = model.parameters()
for batch in loader:
    optimizer.zero_grad()
    model(batch).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)  # used up by the first step
    optimizer.step()
```

Right:

```python
parameters = list(model.parameters())
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from trueline.analyze.compared_ranks import MAX_SITES, sites_of
from trueline.analyze.updates.clipping import ClipCall, clip_calls
from trueline.analyze.updates.laws import TOLERANCE
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "clip-differs"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("clip_facts", "clip_values", "grad_norm")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of calls that clip nothing, and of elements that are clipped otherwise; raises ``CannotTell`` where no
    call was seen.
    """
    every = clip_calls(run)
    steps = sorted({call.step for call in every})
    nothing = list(_nothing(run, every))
    apart = [(call, names) for call in every if (names := _apart(call))]
    return [*([_of_nothing(nothing, steps)] if nothing else []), *([_of_elements(apart, steps)] if apart else [])]


def _nothing(run: Run, every: Sequence[ClipCall]) -> Iterator[ClipCall]:
    """Calls that found no gradient in steps that have one, of which no call found any."""
    norms, _ = run.pivot("grad_norm")
    norm_of = {(step, rank): norms[t, n] for t, step in enumerate(run.steps) for n, rank in enumerate(run.ranks)}
    for (step, rank), group in groupby(every, key=lambda call: (call.step, call.rank)):
        calls = list(group)
        num_params = len(run.env[rank].params) if rank in run.env else 0
        of_all = [call for call in calls if not call.num_params or call.num_params >= num_params]
        if of_all and not any(call.num_grads for call in calls) and norm_of.get((step, rank), math.nan) > 0:
            yield of_all[-1]


def _apart(call: ClipCall) -> list[str]:
    """The names of gradients of which elements were not multiplied by the one factor."""
    factor = call.factor if math.isfinite(call.factor) else call.ratio
    if not math.isfinite(factor):
        return []
    found: list[str] = []
    for name, dtype, before, after in zip(call.names, call.dtypes, call.before, call.after, strict=True):
        if dtype not in FORMATS or before.shape != after.shape:
            continue
        with np.errstate(invalid="ignore"):
            wanted = factor * before
        slack = TOLERANCE * call.unit * np.abs(wanted) + 2 * FORMATS[dtype].smallest
        finite = np.isfinite(before) & np.isfinite(wanted)
        if np.any(finite & ~(np.abs(after - wanted) <= slack)):
            found.append(name)
    return found


def _of_nothing(calls: Sequence[ClipCall], among: Sequence[int]) -> Finding:
    steps, ranks = sorted({call.step for call in calls}), tuple(sorted({call.rank for call in calls}))
    empty = not any(call.num_params for call in calls)
    found = "was given no parameters" if empty else "found none of its parameters with a gradient"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"clip_grad_norm_ {found} on {ranks_text(ranks)} at {steps_text(steps, among=among)}, and clipped "
        "nothing.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=0.0,
        expected=None,
        unit="gradients that were clipped",
        false_alarm_rate=0.0,
        evidence={"kind": "nothing", "num_steps": len(steps)},
        next=(
            "Give it a list: a generator (model.parameters()) that an optimizer or an earlier call has gone through is "
            "empty."
            if empty
            else "Call it after the backward pass and before zero_grad; where a framework keeps gradients elsewhere, "
            "set its own clipping.",
        ),
    )


def _of_elements(apart: Sequence[tuple[ClipCall, list[str]]], among: Sequence[int]) -> Finding:
    steps = sorted({call.step for call, _ in apart})
    ranks = tuple(sorted({call.rank for call, _ in apart}))
    names = list(dict.fromkeys(name for _, some in apart for name in some))
    first = next(call for call, _ in apart if call.step == steps[0])
    return Finding(
        code=CODE,
        severity="error",
        claim=f"Clipping did not multiply elements of {named_some(names)} on {ranks_text(ranks)} at "
        f"{steps_text(steps, among=among)} by the factor that it declares.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="bwd", names=names[: MAX_SITES // 2]),
        measured=None,
        expected=first.factor if math.isfinite(first.factor) else None,
        unit="factor of all elements",
        false_alarm_rate=0.0,
        evidence={"kind": "elements", "names": names[:100], "num_steps": len(steps)},
        next=(
            "Compare with the plain form of clipping: clip_grad_norm_(…, foreach=False). If that is right, the kernel "
            "is wrong; else look for what replaces gradients or these functions.",
        ),
    )
