"""An average of the weights is updated several times for each update of the weights.

What it finds
-------------
An average (EMA, a momentum teacher) that moves several times from one update of the optimizer to the next, while the
weights stay the same: it is updated at each micro-batch of an accumulation, or by two callers.

Why it matters
--------------
With four micro-batches an update a decay of 0.999 acts as 0.996: the average remembers a quarter of the updates that it
is meant to, and another number of micro-batches makes it another average. The loss does not show it.

How it decides
--------------
Exactly, in the first 16 sampled steps, on elements of the average and of the weights that are copied after an update,
in front of each further forward pass (8 at most) and before the next update. Counted is from how many of these to the
next one the average moves; the weights must be the same at all of them. It is said where in three samples or more, and
in most of those in which it moves, that is two or more. An average is what moves to the weights by a share of less than
1, the same for all elements, and is held by no optimizer: a module of the model's class, `AveragedModel` of torch, or a
list or mapping of tensors of the parameters' shapes.

What it may miss
----------------
An average that is updated twice between two looks, and one whose moves are less than its format can hold.

Example
-------
The average AveragedModel is updated 4 times for each update of the weights (rank 0, 14 of 14 samples): also at
micro-batches, where the weights have not changed since.

Wrong and right
---------------
Wrong:

```python
with accelerator.accumulate(model):
    ...
    optimizer.step()
    average.update_parameters(model)
```

Right:

```python
with accelerator.accumulate(model):
    ...
    optimizer.step()
    if accelerator.sync_gradients:
        average.update_parameters(model)
```
"""

from __future__ import annotations

from trueline.laws.averages.beside import FEWEST, CopyOfWeights, copies_of_weights
from trueline.laws.averages.facts import moves_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "average-updates"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("average_facts", "average_values")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding for each average with several updates for one of the weights; raises ``CannotTell`` without any
    average.
    """
    averages = [copy for copy in copies_of_weights(run) if copy.relation == "average"]
    if not averages:
        raise CannotTell("no average of the weights was seen beside the model", reason="by-design")
    by_name: dict[str, list[CopyOfWeights]] = {}
    for copy in averages:
        if (moves_of(copy) or 0) > 1 and len(_several(copy)) >= FEWEST:
            by_name.setdefault(copy.name, []).append(copy)
    return [_finding(run, copies) for copies in by_name.values()]


def _several(copy: CopyOfWeights) -> list[int]:
    """Steps after whose update it moved several times."""
    return [averaging.step for averaging in copy.between if averaging.num_moves > 1]


def _finding(run: Run, copies: list[CopyOfWeights]) -> Finding:
    first = copies[0]
    steps, num = _several(first), moves_of(first) or 0
    ranks = tuple(sorted({copy.rank for copy in copies}))
    moving = sum(averaging.num_moves > 0 for averaging in first.between)
    average = "The average of the weights" if first.name == "the average" else f"The average {first.name}"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{average} is updated {num} times for each update of the weights ("
        f"{ranks_text(ranks, all_ranks=run.ranks)}, {len(steps)} of {moving} samples): also at micro-batches, where "
        "the weights have not changed since.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=float(num),
        expected=1.0,
        unit="updates of the average for each update of the weights",
        false_alarm_rate=0.0,
        evidence={"kind": "several", "name": first.name, "samples": [len(steps), moving], "share": first.share},
        next=(
            "Update the average where the optimizer updates the weights: with Accelerate where "
            "accelerator.sync_gradients is true, else behind the optimizer's step. If its decay is meant for "
            "micro-batches, nothing is wrong.",
        ),
    )
