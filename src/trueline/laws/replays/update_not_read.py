"""The forward pass does not read what the update wrote.

What it finds
-------------
Copies of the weights that the model computes with and nobody renews: casts that are cached over the update (autocast
around the whole loop), a fused or transposed copy that was made once, weights handed to an engine, a module that was
replaced while the optimizer holds the old one's parameters.

Why it matters
--------------
The optimizer works, its weights move and are saved, and the loss is that of the model as it began.

How it decides
--------------
By equality of bits. At the steps that the plan's key `replay` names, the batch is run once more after the update, from
the same random streams, buffers and attributes. The update changed more than half of the parameters that have a
gradient, as the format of the computation (that of autocast) sees them, and of at least 64 numbers that the model
returns not one bit differs: a forward pass that reads these parameters cannot do that, at all steps that were looked
at. Where the model returns fewer numbers, or the update is lost in rounding, nothing is concluded.

What it may miss
----------------
A part that is stale beside others that are not; what is renewed now and then; models that replays leave alone
(`replay-differs` says which).

Example
-------
The forward pass does not read what the update wrote: at step 10 the update of rank 0 changed 24 of 24 parameters, and
the same batch gives the same 4,096 numbers before and after it, bit for bit.

Wrong and right
---------------
Wrong:

```python
with torch.autocast("cuda"):
    for x, y in loader:
        train_step(x, y)
```

Right:

```python
for x, y in loader:
    with torch.autocast("cuda"):
        loss = model(x, y)
    update(loss)
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.replays.rows import looked_at
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "update-not-read"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("replayed",)
ACROSS_RANKS = False

MIN_OUTPUTS = 64
"""Numbers of which none changes. Each would have to be lost in rounding by itself; a loss alone may well be."""


def check(run: Run) -> list[Finding]:
    """A Finding where no batch after an update differs from that before it; raises ``CannotTell`` where none could."""
    rows = {
        key: row
        for key, row in looked_at(run).items()
        if row.reads is not None
        and row.outputs >= MIN_OUTPUTS
        and row.trained
        and 2 * row.trained > row.parameters
        and not row.forward
    }
    if not rows:
        raise CannotTell(
            f"no step that was done again has an update of most parameters and {MIN_OUTPUTS} numbers that the model "
            "returns",
            reason="undecidable",
        )
    ranks = tuple(
        rank
        for rank in sorted({rank for _, rank in rows})
        if not any(row.reads for (_, row_rank), row in rows.items() if row_rank == rank)
    )
    if not ranks:
        return []
    steps = sorted({step for step, rank in rows if rank in ranks})
    row = rows[min(key for key in rows if key[1] in ranks)]
    return [
        Finding(
            code=CODE,
            severity="error",
            claim=f"The forward pass does not read what the update wrote: at {steps_text(steps)} the update of "
            f"{ranks_text(ranks, all_ranks=run.ranks)} changed {row.changed} of "
            f"{counted(row.parameters, 'parameter')}, and the same batch gives the same "
            f"{counted(row.outputs, 'number')} before and after it, bit for bit.",
            ranks=ranks,
            step_first=steps[0],
            step_last=steps[-1],
            sites=sites_of(steps[0], ranks[:2], phase="fwd", names=["model"])[:MAX_SITES],
            measured=0.0,
            expected=float(row.outputs),
            unit="numbers that the update changes, and that the model returns",
            false_alarm_rate=0.0,
            evidence={"kind": "stale", "steps": steps[:100]},
            next=(
                "Look for a copy of the weights that is made once: autocast that is entered around the loop (enter it "
                "for each forward pass), a cast or fused weight in an attribute, a model that was replaced after the "
                "optimizer was made.",
            ),
        )
    ]
