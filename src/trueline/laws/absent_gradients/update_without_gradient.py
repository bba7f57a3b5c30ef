"""An optimizer steps without any gradient: no parameter ever changes.

What it finds
-------------
Updates that no parameter has a gradient for, though backward passes ran in these steps: `zero_grad()` between
`backward()` and `step()`, or a loss that is not made by the parameters that the optimizer holds. So does a backward
pass that does not come to the model at all: of a loss that `torch.tensor`, `.item()` or `no_grad()` has cut off.

Why it matters
--------------
Optimizers of torch pass over parameters without a gradient in silence. The loss moves with its batches, the learning
rate follows its schedule, and the model stays as it began.

How it decides
--------------
By equality, from a step on to the end of the Run: at each sampled update, 3 of them at least, a backward pass had begun
in the step, the rate was not 0, no parameter of the model had a gradient in front of the update, and all digests of
parameters stay the same bit for bit. Where no backward pass came to the model in the whole Run, forward passes in
training mode take its place. A framework that keeps gradients elsewhere changes parameters, and is no
finding.

What it may miss
----------------
`zero_grad(set_to_none=False)`, which leaves zeros: `param-frozen` tells of these, and weight decay moves parameters
then. Single updates without a gradient among others.

Example
-------
No parameter had a gradient when SGD made its updates on rank 0 at steps 0-95, and none of them changed.

Wrong and right
---------------
Wrong:

```python
loss.backward()
optimizer.zero_grad()
optimizer.step()
```

Right:

```python
loss.backward()
optimizer.step()
optimizer.zero_grad()
```
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

from trueline.judge.compared_ranks import sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text, steps_text
from trueline.store.reader import Run

CODE = "update-without-gradient"
CALLS = {"": ("step", "zero_grad")}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "param_digests", "grad_norm", "passes_begun", "num_micro", "lr")
ACROSS_RANKS = False

_ADVICE = {
    True: (
        "Call optimizer.zero_grad() behind optimizer.step() or in front of backward(), never between them.",
        "If you do: print whether the loss that backward is called on is made by the parameters of this optimizer.",
    ),
    False: (
        "No backward pass came to the model: print loss.grad_fn in front of backward(). torch.tensor(loss), .item(), "
        ".detach() and no_grad() cut a loss off.",
    ),
}
"""By whether a backward pass came to the model at any step."""

FEWEST = 3
"""Updates in a row: where the rate is not 0, torch's rules move a parameter with a gradient at each of them."""


def check(run: Run) -> list[Finding]:
    """The Finding of ranks whose updates have nothing to go by, the same steps together; raises ``CannotTell`` where no
    update was sampled.
    """
    facts = run.texts("update_facts")
    if not facts:
        raise CannotTell("no update of an optimizer was sampled")
    updates: defaultdict[int, list[int]] = defaultdict(list)
    for step, rank in sorted(facts):
        updates[rank].append(step)
    ranks_of: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in run.ranks:
        steps = _steps_without_gradient(run, rank, updates[rank])
        if len(steps) >= FEWEST:
            ranks_of[steps].append(rank)
    # Without either nobody looked at gradients: that there is none says nothing, but weights that stay say enough.
    if not (ranks_of or run.has("grad_norm") or run.has("passes_begun")):
        raise CannotTell("no gradient and no backward pass was looked at")
    # Where no backward pass came, the order of calls is not the question.
    advice = _ADVICE[run.has("passes_begun")]
    return [_finding(ranks, steps, _optimizer(facts[steps[-1], ranks[0]]), advice) for steps, ranks in ranks_of.items()]


def _optimizer(facts: str) -> str:
    """The class, of what was noted of an update."""
    return str(json.loads(facts).get("optimizer", "")).rpartition(".")[2]


def _steps_without_gradient(run: Run, rank: int, updates: list[int]) -> tuple[int, ...]:
    """The last sampled ``updates``, in order: no gradient was there, and no parameter changed up to a later step."""
    norms = _values(run, "grad_norm", rank)
    if not updates or updates[-1] in norms:
        return ()
    passes = _values(run, "passes_begun" if run.has("passes_begun") else "num_micro", rank)
    rates, digests = run.lists("lr", ranks=[rank]), _digests(run, rank)
    last = max(digests, default=-1)
    unchanged = itertools.takewhile(lambda step: digests[step] == digests[last], sorted(digests, reverse=True))
    same_since = min(unchanged, default=last)
    steps: list[int] = []
    # Digests are of what an update finds, so that those of the last one show nothing of it.
    for step in (update for update in reversed(updates) if update < last):
        rate = rates.get((step, rank), ())
        if step in norms or step < same_since or not passes.get(step) or not any(float(value) > 0 for value in rate):
            break
        steps.append(step)
    return tuple(reversed(steps))


def _values(run: Run, column: str, rank: int) -> dict[int, float]:
    """The measured numbers of a column on ``rank``, by step."""
    values_TN, measured_TN = run.pivot(column)
    n = list(run.ranks).index(rank)
    measured_T = measured_TN[:, n]
    return dict(zip(run.steps[measured_T].tolist(), values_TN[measured_T, n].tolist(), strict=True))


def _digests(run: Run, rank: int) -> dict[int, tuple[int, ...]]:
    """Digests of all parameters on ``rank``, by step."""
    rows = run.lists("param_digests", ranks=[rank]).items()
    return {step: tuple(row.tolist()) for (step, _), row in rows if len(row)}


def _finding(ranks: list[int], steps: tuple[int, ...], optimizer: str, advice: tuple[str, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity="error",
        claim=f"No parameter had a gradient when {optimizer} made its updates on {ranks_text(ranks)} at "
        f"{steps_text(steps, among=steps)}, and none of them changed.",
        ranks=tuple(ranks),
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="opt", names=("all",)),
        measured=0.0,
        expected=None,
        unit="parameters with a gradient at the update",
        false_alarm_rate=0.0,
        evidence={"kind": "none", "steps": list(steps[:100])},
        next=advice,
    )
