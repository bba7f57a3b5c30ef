"""Rows of an embedding whose gradient is kept at 0 shrink by weight decay all the same.

What it finds
-------------
An embedding of which only the rows of new tokens are to be trained: the gradient of all others is set to 0, by a hook
or in front of the update, and the optimizer decays them (textual inversion, new tokens of a language model).

Why it matters
--------------
The rows that were to stay tend to 0. Whatever was trained on them before is lost, slowly, and nothing fails.

How it decides
--------------
By what is there, at eight early steps at most: ids that the embedding was called with, whose row has a gradient of
exactly 0 at each of these steps. What is read takes part in the loss, so that its gradient is not 0 by itself but for
padding and tokens behind the last target: eight rows at least, and half of those that were read, are none of these. In
the update such rows, which are compared element by element, are multiplied by one factor below 1, to within rounding,
and the group of the embedding has a weight decay. That must be so at three steps.

It is to be confirmed: a mask of gradients does not say that the rows were to stay.

What it may miss
----------------
Rows that are not read in these steps, such as tokens that the data do not have; masks of other weights than those of
`nn.Embedding`; learning rates that are so small that the decay is lost in rounding; embeddings that are sharded.

Example
-------
47 of 48 rows of wte.weight that were read had no gradient at any of 8 steps, and shrank all the same: weight decay
0.01.

Wrong and right
---------------
Wrong:

```python
model.wte.weight.grad[:-1] = 0  # AdamW decays these rows
```

Right:

```python
groups = [{"params": [model.wte.weight], "weight_decay": 0.0}]
```
"""

from __future__ import annotations

from collections import defaultdict

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.laws.optimizer.columns import MaskedRows, masked_rows
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "masked-rows-decay"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("masked_facts", "masked_rows")
ACROSS_RANKS = False

MIN_STEPS, MIN_ROWS = 3, 8
SHARE = 0.5
"""Share of the rows that were read: padding and what stands behind the last target is less."""
ROUNDING = 3e-7
"""Distance from one factor that rounding of float32 explains, beside the length, in some operations (2^-24 each)."""


def check(run: Run) -> list[Finding]:
    """A Finding for each embedding; raises ``CannotTell`` where no embedding that is decayed was seen."""
    ranks = data_parallel_ranks(run)[:1]
    values = run.lists("masked_rows", ranks=ranks)
    steps_of: defaultdict[str, dict[int, MaskedRows]] = defaultdict(dict)
    for key, text in sorted(run.texts("masked_facts").items()):
        if key in values:
            for look in masked_rows(text, values[key].tolist()):
                steps_of[look.name][key[0]] = look
    if not steps_of:
        raise CannotTell("no embedding was seen that is trained with weight decay", reason="by-design")
    return [finding for by_step in steps_of.values() if (finding := _finding(run, by_step)) is not None]


def _finding(run: Run, by_step: dict[int, MaskedRows]) -> Finding | None:
    shrinking = [step for step, look in by_step.items() if _shrinks(look)]
    last = by_step[max(by_step)]
    if len(shrinking) < MIN_STEPS or last.masked < max(MIN_ROWS, SHARE * last.read):
        return None
    ranks = tuple(data_parallel_ranks(run)[:1])
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{last.masked:,} of {counted(last.read, 'row')} of {last.name} that were read had no gradient at any of "
        f"{counted(len(by_step), 'step')}, and shrank all the same: weight decay {last.decay:g}.",
        ranks=ranks,
        step_first=shrinking[0],
        step_last=max(by_step),
        sites=sites_of(shrinking[0], ranks, phase="opt", names=(last.name,)),
        measured=float(last.masked),
        expected=0.0,
        unit="rows without a gradient that are decayed",
        false_alarm_rate=None,
        evidence={"kind": "rows", "name": last.name, "steps": shrinking, "factor": last.factor},
        next=(
            f"Put {last.name} into a group with `weight_decay` 0, or put the rows that are to stay back after each "
            "update: a mask of the gradient does not keep an optimizer from decaying.",
        ),
    )


def _shrinks(look: MaskedRows) -> bool:
    return look.masked > 0 and look.residual <= ROUNDING and look.factor < 1 - 2 * ROUNDING
