"""Two optimizers update the same parameters by one gradient.

What it finds
-------------
An encoder that is in an optimizer of its own and, as a part of what uses it, in that of the loss; two optimizers that
were made of `model.parameters()`. Both step after one backward pass.

Why it matters
--------------
These parameters move twice, at the sum of two learning rates, each with momentum and decay of its own. The others move
once.

How it decides
--------------
Exactly. At a few steps all updates of optimizers are followed: a parameter had one and the same gradient at the updates
of two of them, no backward pass came between these, and nobody wrote to the gradient. It is not zero
(`param_grad_norms` has its norm). An optimizer that wraps another one makes one update. Two optimizers that each have a
backward pass of their own, as those of an actor and a critic that share an encoder, are left alone.

What it may miss
----------------
Gradients that are clipped or unscaled between the two updates; an optimizer that steps at few steps, none of which was
followed; updates that are compiled, which call no hooks.

Example
-------
encoder.0.weight, encoder.0.bias, encoder.2.weight and 3 more are in two optimizers, Adam and Adam, which both update
them by one gradient: each step moves them twice.

Wrong and right
---------------
Wrong:

```python
encoder_optimizer = torch.optim.Adam(encoder.parameters())
loss_optimizer = torch.optim.Adam(contrast.parameters())  # contrast.encoder is encoder
```

Right:

```python
encoder_optimizer = torch.optim.Adam(encoder.parameters())
loss_optimizer = torch.optim.Adam([contrast.W])
```
"""

from __future__ import annotations

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.laws.optimizer.held import holdings
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, listed, named_some
from trueline.store.reader import Run

CODE = "updated-twice"
CALLS = {"": ("optimizer", "step")}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("holdings", "param_grad_norms")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """The Finding on parameters with two updates a step; raises ``CannotTell`` where no step was followed."""
    shared = [row for row in holdings(run) if row.shared]
    if not shared:
        return []
    ranks = data_parallel_ranks(run)[:1]
    with_gradient = _with_gradient(run, ranks[0])
    names = [name for name in shared[0].shared if name in with_gradient]
    if not names:
        return []
    num = max(shared[0].num_shared - len(shared[0].shared) + len(names), len(names))
    by = [*shared[0].by, *shared[0].by][:2]
    verb, it = ("is", "it") if num == 1 else ("are", "them")
    more = "" if num == len(names) else f" ({counted(num, 'parameter')})"
    return [
        Finding(
            code=CODE,
            severity="warning",
            claim=f"{capitalized(named_some(names))}{more} {verb} in two optimizers ({listed(by)}), which both update "
            f"{it} by one gradient at {len(shared)} of {counted(len(holdings(run)), 'step')} that were followed: each "
            f"step moves {it} twice.",
            ranks=tuple(ranks),
            step_first=shared[0].step,
            step_last=shared[-1].step,
            sites=sites_of(shared[0].step, ranks, phase="opt", names=names),
            measured=2.0,
            expected=1.0,
            unit="updates by one gradient",
            false_alarm_rate=0.0,
            evidence={"kind": "two-optimizers", "names": names[:100]},
            next=(
                "Leave these parameters out of one of the two optimizers: give it the parameters of its own part, and "
                "not those of the module around it.",
            ),
        )
    ]


def _with_gradient(run: Run, rank: int) -> set[str]:
    """Names of parameters that had a gradient other than zero at a measured step."""
    params = run.env[rank].params if rank in run.env else []
    rows = [row for row in run.lists("param_grad_norms", ranks=[rank]).values() if len(row) == len(params)]
    return {params[p] for p in np.flatnonzero((np.stack(rows) > 0).any(axis=0)).tolist()} if rows else set()
