"""The forward pass uses what was computed of parameters before they were updated.

What it finds
-------------
One `torch.autocast` around the whole loop: its cache serves the first copies of the weights in bfloat16 for ever. A
cast, a norm or a product of weights that a module computes once and keeps. The optimizer writes the parameters, and
the forward pass reads something older.

Why it matters
--------------
Gradients are computed and applied, weights change, and the loss does not follow: the model computes with the weights
of the first step. All ranks do so alike.

How it decides
--------------
Exactly. At a few steps (the third sampled one, then each time at four times the age) the graph of the loss is walked.
An operation that is computed of parameters alone, and that was in the graph of the loss at the last such step already,
was not computed again; and its parameter is not what it was then. Views share the memory of their parameter, and are
left out.

What it may miss
----------------
Copies that autograd does not know, as those made under `no_grad`. Parameters behind the first 64 of such operations;
graphs of more than 20,000 operations; what was compiled or is computed within a custom function or a checkpoint.
Updates that change none of the up to 4,096 elements that are looked at.

Example
-------
The forward pass at step 8 uses what was computed of 0.weight, 0.bias, 2.weight and 1 more at step 2 or before: these
parameters were updated since.

Wrong and right
---------------
Wrong:

```python
with torch.autocast("cuda", torch.bfloat16):
    for batch in loader:
        loss = model(batch)
```

Right:

```python
for batch in loader:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(batch)
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.leaves.looks import ask_for_whole_graphs, later_looks
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text
from trueline.store.reader import Run

CODE = "stale-weights"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("loss_leaves",)
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding on parameters whose older values are used; raises ``CannotTell`` where no two steps were looked at."""
    stale = [look for look in later_looks(run) if look.stale]
    if not stale:
        ask_for_whole_graphs(run)
        return []
    first, last = stale[0], stale[-1]
    ranks = tuple(sorted({look.rank for look in stale}))
    names = list(dict.fromkeys(name for look in stale for name in look.stale))
    before = first.leaves.last_step or 0
    were = "this parameter was" if len(names) == 1 else "these parameters were"
    return [
        Finding(
            code=CODE,
            severity="error",
            claim=f"The forward pass at step {first.step} uses what was computed of {named_some(names)} at step "
            f"{before} or before ({ranks_text(ranks, all_ranks=run.ranks)}): {were} updated since.",
            ranks=ranks,
            step_first=first.step,
            step_last=last.step,
            sites=sites_of(first.step, ranks[:2], phase="fwd", names=names[: MAX_SITES // 2]),
            measured=float(len(names)),
            expected=0.0,
            unit="parameters of which older values are used",
            false_alarm_rate=0.0,
            evidence={"names": names[:100], "onset_interval": [before + 1, first.step]},
            next=(
                "Open torch.autocast for each forward pass, not around the loop: it keeps casts of weights until the "
                "outermost context ends. cache_enabled=False tells whether that is it.",
                "Otherwise look for what is computed of a weight once and kept as an attribute.",
            ),
        )
    ]
