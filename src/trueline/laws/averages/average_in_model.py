"""The weights are replaced with their average between two updates.

What it finds
-------------
Weights that are, in front of an update, not those that the update before had left, but those of an average that the
job keeps beside the model (EMA, a shadow): it was copied into the model for an evaluation or a checkpoint, and the
weights were not put back.

Why it matters
--------------
Training goes on from the average, with states of the optimizer that belong to other weights. Each time it loses what
was learnt since about one length of the average: the more often a checkpoint is saved, the less the model learns.

How it decides
--------------
Exactly, at sampled steps, on 16 neighbouring elements of up to 8 tensors, which are copied on the device after an
update and before the next one: the weights have changed in between, all elements are equal to those of the average, and
the average did nothing but stay or move towards the weights that the update had left. Weights that are loaded from
elsewhere and then copied into an average are left alone. An average is what `average-updates` says; where a copy only
is set to the weights now and then, or is a snapshot, nothing is said.

What it may miss
----------------
Replacements between steps that are not sampled; averages on another device than the model; such as are only in a file.
Methods that do this by design (slow and fast weights by hand, a switch to the average once an epoch) are asked about,
too.

Example
-------
After steps 24, 49 and 74 the weights were replaced with the average Shadow.shadow between two updates, not by the
optimizer, and training went on from it (ranks 0 and 1).

Wrong and right
---------------
Wrong:

```python
average.copy_to(model.parameters())
torch.save(model.state_dict(), path)
```

Right:

```python
average.store(model.parameters())
average.copy_to(model.parameters())
torch.save(model.state_dict(), path)
average.restore(model.parameters())
```
"""

from __future__ import annotations

from trueline.laws.averages.beside import Change, CopyOfWeights, copies_of_weights
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text, steps_text
from trueline.store.reader import Run

CODE = "average-in-model"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("average_facts", "average_values", "copy_changes")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding for each average that replaced the weights; raises ``CannotTell`` without any average."""
    averages = [copy for copy in copies_of_weights(run) if copy.relation == "average" and copy.changes]
    if not averages:
        raise CannotTell("no average of the weights was seen beside the model", reason="by-design")
    by_name: dict[str, list[CopyOfWeights]] = {}
    for copy in averages:
        if any(map(_is_replaced, copy.changes)):
            by_name.setdefault(copy.name, []).append(copy)
    return [_finding(run, copies) for copies in by_name.values()]


def _is_replaced(change: Change) -> bool:
    return change.weights > 0 and change.equal == change.num and change.outside == 0


def _finding(run: Run, copies: list[CopyOfWeights]) -> Finding:
    steps = sorted({change.since for copy in copies for change in copy.changes if _is_replaced(change)})
    among = sorted({change.since for copy in copies for change in copy.changes})
    ranks = tuple(sorted({copy.rank for copy in copies}))
    name = copies[0].name
    average = "their average" if name == "the average" else f"the average {name}"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"After {steps_text(steps, among=among)} the weights were replaced with {average} between two updates, "
        f"not by the optimizer, and training went on from it ({ranks_text(ranks, all_ranks=run.ranks)}).",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=float(len(steps)),
        expected=0.0,
        unit="times that the weights were replaced with their average",
        false_alarm_rate=0.0,
        evidence={"kind": "replaced", "name": name, "steps": steps[:100]},
        next=(
            "Keep the weights before the average is copied into the model, and put them back before the next update "
            "(store and restore). If training is to go on from the average, nothing is wrong.",
        ),
    )
