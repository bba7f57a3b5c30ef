"""Gradients that an update has used are still there when the next backward pass adds to them.

What it finds
-------------
A `zero_grad` that is missing, that is called on another optimizer or model, on some of the parameters, or on some ranks
alone: every update then applies the gradients of all earlier steps again.

Why it matters
--------------
The step is no longer the gradient of its batch but a sum over the whole training. It grows, clipping hides that, and
the loss falls at first as it does with a large momentum. All ranks share it, so that comparing them shows nothing.

How it decides
--------------
By equality. At the first 16 updates, and then at every 20th, later every 100th, 16 neighbouring elements of the
gradients of up to 32 parameters (in rotation, other ones on each rank) are copied as the update leaves them, and looked
at again before the backward passes of the next step begin. A gradient is a finding where it is the same tensor, has the
same elements, not all of them zero, at the first of these passes, is not cleared before any later one, and a pass adds
to it. Only parameters count that both the optimizer that has updated and the next one hold. There are no statistics and
so no false alarms.

So these are left alone: several backward passes before one update; `zero_grad` anywhere between an update and the
backward pass, with `set_to_none=False` too, or inside of a closure; the gradients that a generator leaves in its
critic, if they are cleared before the critic's own; those of a second optimizer that updates less often; those that
code scales or replaces on purpose.

What it may miss
----------------
Gradients that frameworks keep elsewhere than in `.grad` (DeepSpeed, Megatron's `main_grad`), for which it cannot tell;
gradients of another loss that are added after `zero_grad`; those of optimizers of one model that take turns; elements
and steps that were not sampled; passes after the eighth of a step.

Example
-------
The gradients of 0.weight and 0.bias that an update had used were still there on rank 0 when the backward passes of
steps 7-12 began, and were added to.

Wrong and right
---------------
Wrong:

```python
for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()
```

Right:

```python
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    optimizer.step()
```
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trueline.analyze.compared_ranks import MAX_SITES, sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "grad-accumulates"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("kept_gradients",)
ACROSS_RANKS = False

_NEXT = (
    "Call optimizer.zero_grad() once for every optimizer.step(): right after it, or before the first backward pass of "
    "the next step.",
    "If you do: look whether that optimizer holds these parameters, and whether the call is skipped on some ranks or "
    "in some steps.",
)


def check(run: Run) -> list[Finding]:
    """One Finding for all gradients that were kept; raises ``CannotTell`` where none was looked at."""
    looked = run.lists("kept_gradients")
    if not looked:
        seen = run.measured("optimizer_digest").any()
        raise CannotTell(
            "no update left gradients in .grad that were looked at before the next backward pass: the framework keeps "
            "them elsewhere, updates are compiled, or the Run is of an older version"
            if seen
            else "no update of an optimizer was seen",
            reason="no-data" if seen else "not-recorded",
        )
    kept = {key: positions for key, positions in looked.items() if len(positions)}
    if not kept:
        return []
    steps, ranks = sorted({step for step, _ in kept}), tuple(sorted({rank for _, rank in kept}))
    names = _names(run, kept)
    of_first = _names(run, {key: places for key, places in kept.items() if key[0] == steps[0]})
    return [
        Finding(
            code=CODE,
            severity="error",
            claim=f"The gradient{'' if len(names) == 1 else 's'} of {named_some(names)} that an update had used "
            f"{'was' if len(names) == 1 else 'were'} still there on {ranks_text(ranks)} when the backward passes of "
            f"{steps_text(steps, among=sorted({step for step, _ in looked}))} began, and were added to.",
            ranks=ranks,
            step_first=steps[0],
            step_last=steps[-1],
            sites=sites_of(steps[0], ranks[:2], phase="bwd", names=of_first[: MAX_SITES // 2]),
            measured=float(len(names)),
            expected=0.0,
            unit="parameters whose gradient was not cleared, of those that were looked at",
            false_alarm_rate=0.0,
            evidence={"names": names[:100], "num_steps": len(steps)},
            next=_NEXT,
        )
    ]


def _names(run: Run, kept: Mapping[tuple[int, int], np.ndarray]) -> list[str]:
    """The parameters at these positions, by (step, rank), each once."""
    params = {rank: env.params for rank, env in run.env.items()}
    found = [(params[rank], int(place)) for (_, rank), places in kept.items() for place in places if rank in params]
    return list(dict.fromkeys(known[place] for known, place in found if place < len(known)))
