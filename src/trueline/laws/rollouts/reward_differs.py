"""A reward is another when the same text is scored again, or advantages are not those of their group.

What it finds
-------------
Sequences whose `reward_again` is not `reward`. Groups of sequences of one prompt whose
advantages do not add up to 0, or are not of one sign order with their rewards (GRPO).

Why it matters
--------------
A scorer that is not a function of the text (white space, truncation, a model with dropout
on, a batch that leaks) teaches noise; advantages of another group teach something else.

How it decides
--------------
Exactly for rewards of rules, which are few numbers: any difference. Rewards that take many values are a model's: a
difference of more than 1 % of their spread. GRPO: advantages are rewards minus their mean in the group, divided by a
positive number or not, so their sum is 0 to within 1e-3 of their largest and the order is that of the rewards.

What it may miss
----------------
A scorer that is wrong in the same way each time. Groups of which not all sequences are recorded in one step: declare
none, or how many sequences a group has, `sampling={"group_size": 8}`, so that the others are left out.

Example
-------
7 of 512 sequences of steps 0-7 have another reward when they are scored again, by up to 1.

Wrong and right
---------------
Wrong:

```python
reward = float(answer == text.split("answer:")[1])  # " 4" is not "4"
```

Right:

```python
reward = float(answer.strip() == text.split("answer:")[1].strip())
```
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.evidence import finding, span
from trueline.laws.rollouts.tokens import sampling_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run
from trueline.store.records.arrays import floats

CODE = "reward-differs"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

Floats = NDArray[np.float64]

_FEW = 32
"""Rewards with at most so many distinct values are those of rules."""


def check(run: Run) -> list[Finding]:
    """Findings of rewards and advantages; raises ``CannotTell`` where neither can be judged."""
    if not run.kept("rollouts"):
        raise CannotTell("no rollouts were recorded: call trueline.rl.record", reason="not-recorded")
    kept_rows = cast(Any, run.kept("rollouts"))
    names = ["step", "group", "reward", "reward_again", "advantage"]
    table = kept_rows.table([*names, "sampling"])
    step, group, reward, again, advantage = (floats(table[name]) for name in names)
    twice = np.isfinite(reward) & ~np.isnan(again)
    grouped = np.isfinite(group) & np.isfinite(reward) & np.isfinite(advantage)
    if not twice.any() and not grouped.any():
        raise CannotTell(
            "no reward was scored again (reward_again), and no advantages were recorded with groups",
            reason="not-recorded",
        )
    return [
        *_again(step[twice], reward[twice], again[twice]),
        *_groups(step[grouped], group[grouped], reward[grouped], advantage[grouped], _sizes(table)[grouped]),
    ]


def _again(step: Floats, reward: Floats, again: Floats) -> list[Finding]:
    if not len(reward):
        return []
    by_rule = len(np.unique(reward)) <= _FEW
    allowed = 0.0 if by_rule else 0.01 * float(reward.std())
    differ = ~(np.abs(again - reward) <= allowed)
    if not differ.any():
        return []
    number, largest = int(differ.sum()), float(np.abs(again - reward)[differ].max())
    return [
        finding(
            CODE,
            f"{number} of {len(reward)} sequences of {span(step[differ].astype(np.int64))} have another reward when "
            "they are "
            f"scored again, by up to {largest:.3g}.",
            None,
            steps=(int(step[differ].min()), int(step[differ].max())),
            severity="error" if by_rule else "warning",
            measured=largest,
            expected=allowed,
            unit="reward",
            evidence={"kind": "rule" if by_rule else "model", "sequences": number},
            next=(
                "Score one of these texts alone, twice, and in a batch: does it depend on white space, truncation, "
                "its batch, "
                "or on chance (dropout, a timeout)?",
            ),
        )
    ]


def _sizes(table: Any) -> Floats:
    """[R] how many sequences the group of each was declared to have, 0 for unknown."""
    declared, indices = sampling_of(table)
    sizes = [group_size.get("group_size") for group_size in declared]
    return np.array([float(size) if isinstance(size, int) else 0.0 for size in sizes] or [0.0])[indices]


def _groups(step: Floats, group: Floats, reward: Floats, advantage: Floats, size: Floats) -> list[Finding]:
    order = np.lexsort((group, step))
    step, group, reward, advantage, size = (
        rows_of_group[order] for rows_of_group in (step, group, reward, advantage, size)
    )
    first = np.flatnonzero(np.r_[True, (np.diff(step) != 0) | (np.diff(group) != 0)][: len(step)])
    spans = [slice(*ends) for ends in zip(first, [*first[1:], len(step)], strict=True)]
    whole = [
        group_rows
        for group_rows in spans
        if group_rows.stop - group_rows.start >= max(2.0, float(size[group_rows.start]))
    ]
    bad = [
        int(step[group_rows.start]) for group_rows in whole if not _is_law(reward[group_rows], advantage[group_rows])
    ]
    total = len(whole)
    if not bad:
        return []
    return [
        finding(
            CODE,
            f"The advantages of {len(bad)} of {total} groups of {span(np.array(bad))} are not those of their rewards: "
            "they do "
            "not add up to 0 within the group, or have another order.",
            None,
            steps=(min(bad), max(bad)),
            severity="error",
            measured=float(len(bad)),
            expected=0.0,
            unit="groups",
            evidence={"kind": "group-law"},
            next=("Look at how sequences are put into groups: after shuffling, padding or balancing of the batch?",),
        )
    ]


def _is_law(reward: Floats, advantage: Floats) -> bool:
    largest = float(np.abs(advantage).max())
    centred = reward - reward.mean()
    if largest == 0:
        return float(np.abs(centred).max()) <= 1e-6 * max(1.0, float(np.abs(reward).max()))
    slope = float(centred @ advantage) / float(advantage @ advantage)
    return (
        abs(float(advantage.sum())) <= 1e-3 * largest * len(advantage)
        and slope > 0
        and bool((np.abs(centred - slope * advantage) <= 1e-2 * np.abs(centred).max() + 1e-6).all())
    )
