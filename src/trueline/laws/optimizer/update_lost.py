"""Updates are lost in the rounding of parameters, or second moments cannot decay.

What it finds
-------------
Parameters in bfloat16 or float16 whose updates are less than half of their spacing, so that they stay as they are, and
second moments that stay where they are because their decay is less than half of theirs (`beta2` of 0.999 in bfloat16).

Why it matters
--------------
The smaller the learning rate becomes, the less of the model trains; norm weights near 1 stop first. A second moment
that cannot decay remembers the largest gradient for ever, and makes steps too small.

How it decides
--------------
By arithmetic, at the elements that `update-magnitude` predicts. An element is lost where its declared move is not zero
and the parameter is the same afterwards, and rounding explains that. Measured is the share of the squared norm of all
declared moves that is lost, each slice counting for the size of its parameter: a warning from a fifth on.
Second moments that were to fall and stayed are an information, from a fifth of those that were to fall on.

What it may miss
----------------
Moves that are rounded to twice or half of their size without being lost.

Example
-------
Rounding loses 49 % of what AdamW declares to move (squared norm): parameters are bfloat16.

Wrong and right
---------------
Wrong:

```python
model = model.bfloat16()  # parameters, states and updates
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
```

Right:

```python
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)  # float32 parameters
with torch.autocast("cuda", torch.bfloat16):
    loss = model(batch)
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueline.judge.series.update_rules import PARAM
from trueline.laws.optimizer.evidence import finding_on, optimizer_of
from trueline.laws.optimizer.judgement import Judged, judged_updates
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import listed
from trueline.store.reader import Run

CODE = "update-lost"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values")
ACROSS_RANKS = False

WORTH_TELLING = 0.2
"""Share from which on it is told: benchmarks/laws has what pure bfloat16 loses at usual learning rates."""

_ROUNDINGS = 2.0
"""Of weight decay and of the move: together they lose at most twice half a spacing."""

_SECOND = ("exp_avg_sq", "square_avg")


def check(run: Run) -> list[Finding]:
    """Findings of what rounding loses; raises ``CannotTell`` where no update could be predicted."""
    every = [each for each in judged_updates(run) if each.of.has_gradient and not each.of.skipped]
    found: list[Finding] = []
    share = share_lost(every)
    if share > WORTH_TELLING:
        found.append(_lost(every, share))
    stuck = share_stuck(every)
    if stuck > WORTH_TELLING:
        found.append(_stuck(every, stuck))
    return found


def share_lost(every: Sequence[Judged]) -> float:
    """The share of the squared norm of the declared moves that is lost; 0 where nothing was to move."""
    whole = lost = 0.0
    for each in every:
        move2 = np.where(np.isfinite(each.move), each.move, 0.0) ** 2 * each.of.numel / len(each.move)
        before = each.of.before[PARAM]
        in_reach = np.abs(each.move) <= _ROUNDINGS * FORMATS[each.of.dtypes[PARAM]].unit * np.abs(before)
        stays = (each.of.after[PARAM] == before) & in_reach
        whole += float(move2.sum())
        lost += float(move2[stays].sum())
    return lost / whole if whole > 0 else 0.0


def share_stuck(every: Sequence[Judged]) -> float:
    """The share of sampled second moments that stayed, of those that were to fall."""
    falling = stuck = 0
    for each in every:
        for name in _SECOND:
            before, after, declared = each.of.before.get(name), each.of.after.get(name), each.predicted.get(name)
            if before is None or after is None or declared is None:
                continue
            falls = declared < before
            falling += int(falls.sum())
            stuck += int((falls & (after == before) & (each.excess[name] <= 1)).sum())
    return stuck / falling if falling else 0.0


def _dtypes(every: Sequence[Judged], *names: str) -> str:
    return listed(sorted({each.of.dtypes[name] for each in every for name in names if name in each.of.dtypes}))


def _lost(every: Sequence[Judged], share: float) -> Finding:
    slices = [each.of for each in every]
    return finding_on(
        slices,
        code=CODE,
        severity="warning",
        claim=f"Rounding loses {share:.0%} of what {optimizer_of(slices)} declares to move (squared norm): parameters "
        f"are {_dtypes(every, PARAM)}.",
        measured=share,
        expected=WORTH_TELLING,
        unit="share of the squared norm of declared moves that is lost (at most)",
        next=(
            "Keep parameters and optimizer states in float32 and compute in lower precision under autocast, or keep a "
            "float32 copy that the optimizer updates.",
        ),
    )


def _stuck(every: Sequence[Judged], share: float) -> Finding:
    slices = [each.of for each in every]
    return finding_on(
        slices,
        code=CODE,
        severity="info",
        claim=f"{share:.0%} of the second moments of {optimizer_of(slices)} that were to fall stayed where they were: "
        f"their decay is less than half a rounding of {_dtypes(every, *_SECOND)}.",
        measured=share,
        expected=WORTH_TELLING,
        unit="share of falling second moments that stay (at most)",
        slot="state",
        next=("Keep optimizer states in float32, or use a smaller beta2.",),
    )
