"""Weight decay pulls weights of norms to zero, in a job that meant to spare some parameters from it.

What it finds
-------------
Groups of an optimizer that were made to spare norms and biases from weight decay, by names that this model does not
have: `LayerNorm.weight` in a model of RMSNorm, `bn` where the module is called `norm1`.

Why it matters
--------------
The weights of norms are pulled to 0 and not kept near 1; with a decay that matters the model learns more slowly, and to
a worse loss.

How it decides
--------------
By the groups of the optimizer at a few steps, and by which parameters are vectors of modules that normalise. It is for
you to confirm where a group with decay holds such weights although the job spares something: a group without decay is
empty; or it holds biases and vectors, and not these; or the groups that the optimizer was given name a decay of their
own, and none of them spares anything. An optimizer that was given parameters alone spares nothing on purpose, as most
do, and is left alone.

What it may miss
----------------
Norms whose class has no `norm` in its name, parameters that a framework puts into one flat tensor, and optimizers of
copies.

Example
-------
Weight decay 0.5 applies to the weights of 5 norms (model.norm.weight and 4 more): no group of AdamW spares anything.

Wrong and right
---------------
Wrong:

```python
spared = [p for n, p in model.named_parameters() if "bias" in n or "LayerNorm.weight" in n]
```

Right:

```python
spared = [p for p in model.parameters() if p.dim() < 2]
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.laws.optimizer.columns import DecayGroup, StepOf
from trueline.laws.optimizer.held import holdings
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

CODE = "decay-on-norms"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("holdings",)
ACROSS_RANKS = False

Kind = Literal["empty", "others", "none"]


def check(run: Run) -> list[Finding]:
    """A Finding for each optimizer; raises ``CannotTell`` where no step was followed."""
    rows = holdings(run)
    findings: list[Finding] = []
    for number, update in enumerate(rows[0].updates):
        kind = _kind(update)
        # A decay that follows a schedule is in no default either.
        if kind == "none" and any(row.updates[number : number + 1] != (update,) for row in rows[1:]):
            continue
        if kind is not None:
            findings.append(_finding(run, update, kind, rows[0].step))
    return findings[:1]


def _kind(update: StepOf) -> Kind | None:
    spared = [group for group in update.groups if group.decay == 0]
    if not _decayed(update):
        return None
    if any(not group.num for group in spared):
        return "empty"
    if spared:
        return "others" if any(group.num_vectors or group.norms for group in spared) else None
    # What is given without groups has the decay of all.
    own = {group.decay for group in update.groups if group.num}
    return "none" if update.default is not None and len(own) == 1 and own != {update.default} else None


def _decayed(update: StepOf) -> Sequence[DecayGroup]:
    return [group for group in update.groups if group.decay > 0 and group.norms]


def _finding(run: Run, update: StepOf, kind: Kind, step: int) -> Finding:
    decayed, ranks = _decayed(update), data_parallel_ranks(run)[:1]
    names = [name for group in decayed for name in group.norms]
    norms = "a norm" if len(names) == 1 else counted(len(names), "norm")
    why = {
        "empty": f"the group of {update.optimizer} that has no decay is empty",
        "others": f"the group of {update.optimizer} that has no decay does not hold them",
        "none": f"no group of {update.optimizer} spares anything",
    }[kind]
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Weight decay {decayed[0].decay:g} applies to the weights of {norms} ({named_some(names)}): {why}.",
        ranks=tuple(ranks),
        step_first=step,
        step_last=step,
        sites=sites_of(step, ranks, phase="opt", names=names),
        measured=float(len(names)),
        expected=0.0,
        unit="weights of norms with weight decay",
        false_alarm_rate=None,
        evidence={"kind": kind, "names": names[:100]},
        next=(
            "Print the names of the parameters of each group. Spare by what a parameter is, and not by a part of its "
            "name: [p for p in model.parameters() if p.dim() < 2] has all norms and biases.",
        ),
    )
