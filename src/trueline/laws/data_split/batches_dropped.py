"""The model is called on batches of which nothing is learned: no backward pass comes to them.

What it finds
-------------
A loop that passes over batches behind the forward pass: `if len(hard) < enough: continue` where examples are to be
collected and only those of the last batch reach the loss, `if loss > limit: continue`, a `training_step` that returns
None, a loss that is computed and forgotten.

Why it matters
--------------
The samples are read and cost a forward pass, and no weight learns of them. The loss that is logged is that of the other
batches; an epoch is shorter than everybody believes, and what is left out is often what is rare or hard.

How it decides
--------------
By counting, between sampled steps of one epoch: batches that the training's DataLoader gave, forward passes of the
model in training mode with gradients enabled, and of these those after which the next one began without a backward pass
of any model in between, and to whose outputs no gradient came back until the update after. It is for you to confirm
where the passes are as many as the batches, one of each, in three such stretches or more and in half of all, and three
batches or more were dropped. Passes of which one loss is made later (two views, outputs that are collected), those of a
generator beside its critic, of a teacher, of an evaluation, a rollout or a generation are so left alone.

Batches whose loss is not finite are said by `loss-skipped`. There are no statistics.

What it may miss
----------------
Batches that do not come from a DataLoader of torch, or of which the model is called on parts; batches before the first
sampled step with such a pass; outputs that torch does not let hook.

Example
-------
50 of 75 batches had a forward pass in training mode and no backward pass: nothing is learned of them.

Wrong and right
---------------
Wrong:

```python
for x, y in loader:
    hard = choose(model(x), y)
    count += len(hard)
    if count < enough:
        continue
    loss_of(hard).backward()
```

Right:

```python
for x, y in loader:
    chosen.append(choose(model(x), y))
    if sum(map(len, chosen)) < enough:
        continue
    loss_of(torch.cat(chosen)).backward()
```
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from trueline.judge.compared_ranks import MOST_RANKS, data_parallel_ranks, sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "batches-dropped"
CALLS = {"": ("backward",)}
QUESTION = "repeats"
NEEDS: tuple[str, ...] = ("skipped_losses", "loader_batches", "epoch")
ACROSS_RANKS = False

FEWEST = 3
"""Stretches between sampled steps that must agree, and batches that were dropped: one or two may be a check of the
script's own."""


@dataclass(frozen=True, slots=True)
class _Dropped:
    """Of ``batches`` between the steps ``first`` and ``last`` those that were ``dropped``."""

    batches: int
    dropped: int
    first: int
    last: int


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where batches of a loader were not counted."""
    if not run.measured("loader_batches").any():
        raise CannotTell("no DataLoader of torch was seen whose batches are trained on", reason="by-design")
    by_rank = {rank: _dropped(run, rank) for rank in data_parallel_ranks(run)[:MOST_RANKS]}
    dropped = {rank: of_rank for rank, of_rank in by_rank.items() if of_rank is not None}
    return [_finding(run, dropped)] if dropped else []


def _dropped(run: Run, rank: int) -> _Dropped | None:
    column = run.ranks.index(rank)
    batches_TN, seen_TN = run.pivot("loader_batches")
    epochs_TN, epoch_TN = run.pivot("epoch")
    row_of = {int(step): row for row, step in enumerate(run.steps) if seen_TN[row, column] and epoch_TN[row, column]}
    skipped = {step: row for (step, at), row in run.lists("skipped_losses").items() if at == rank and step in row_of}
    # a row of an older version does not say whether a gradient came back
    if any(len(row) < 4 or row[2] for row in skipped.values()):
        return None
    steps = sorted(skipped)
    stretches: list[tuple[int, int, int]] = []
    num_others = 0
    for begin, end in pairwise(steps):
        at, until = row_of[begin], row_of[end]
        if epochs_TN[at, column] != epochs_TN[until, column]:
            continue
        batches = int(batches_TN[until, column] - batches_TN[at, column])
        if batches == skipped[end][0]:
            stretches.append((batches, int(skipped[end][3]), end))
        else:
            num_others += 1
    dropped = sum(stretch[1] for stretch in stretches)
    if len(stretches) < max(FEWEST, num_others) or dropped < FEWEST:
        return None
    return _Dropped(sum(stretch[0] for stretch in stretches), dropped, steps[0], stretches[-1][2])


def _finding(run: Run, by_rank: dict[int, _Dropped]) -> Finding:
    ranks = tuple(sorted(by_rank))
    batches, dropped = (sum(getattr(of_rank, name) for of_rank in by_rank.values()) for name in ("batches", "dropped"))
    first, last = min(part.first for part in by_rank.values()), max(part.last for part in by_rank.values())
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{dropped:,} of {batches:,} batches had a forward pass in training mode and no backward pass: nothing "
        f"is learned of them ({ranks_text(ranks, all_ranks=run.ranks)}, steps {first} to {last}).",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="loss", names=("all",)),
        measured=float(dropped),
        expected=0.0,
        unit="batches without a backward pass",
        false_alarm_rate=0.0,
        evidence={"kind": "dropped", "batches": batches, "dropped": dropped},
        next=(
            "Look for a `continue`, or a return of None, between the model's call and backward(): what was computed of "
            "these batches is to be part of a later loss, or they need not be read.",
        ),
    )
