"""Updates are lost in the rounding of parameters, or second moments cannot decay.

What it finds
-------------
Parameters in bfloat16 or float16 whose updates are less than half of their spacing, so that they stay as they are, and
second moments that stay where they are because their decay is less than half of theirs (`beta2` of 0.999 in bfloat16).
Parameters in 16 bits that no update has changed by a bit, as the weights of norms, beside others that train.

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

Less is to be confirmed where it is all that a parameter has: it is bfloat16 or float16, has a gradient at all measured
steps, its digest is the same at all looks while at eight of them or more others have changed, and at each sampled
update of it moves are declared, and all of them are so small that rounding explains that it stays.

What it may miss
----------------
Moves that are rounded to twice or half of their size without being lost. Optimizers with a rule of their own: they may
have a copy in higher precision that we do not know.

Example
-------
Rounding loses 49 % of what AdamW declares to move (squared norm): parameters are bfloat16.
5 parameters (h.0.ln_1.weight, h.0.ln_2.weight, h.1.ln_1.weight and 2 more) are bfloat16 and never change: updates by
AdamW are at most 0.0016, less than half a step of bfloat16 there.

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
from numpy.typing import NDArray

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.update_rules import PARAM
from trueline.laws.optimizer.evidence import AffectedSlices
from trueline.laws.optimizer.judgement import JudgedUpdate, judged_updates
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import counted, listed, named_some
from trueline.store.reader import Run

CODE = "update-lost"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values")
ACROSS_RANKS = False

WORTH_TELLING = 0.2
"""Share from which on it is told: studies/laws has what pure bfloat16 loses at usual learning rates."""

_ROUNDINGS = 2.0
"""One of weight decay and one of the move: together they lose at most twice half a spacing."""

FEWEST = 8
"""Looks at which something has changed, but not a parameter that is said never to."""

_SHORT = ("torch.bfloat16", "torch.float16")

_SECOND_MOMENTS = ("exp_avg_sq", "square_avg")


def check(run: Run) -> list[Finding]:
    """Findings of what rounding loses; raises ``CannotTell`` where no update could be predicted."""
    updates = [update for update in judged_updates(run) if update.sample.has_gradient and not update.sample.skipped]
    findings: list[Finding] = []
    share = share_lost(updates)
    if share > WORTH_TELLING:
        findings.append(_lost_finding(updates, share))
    elif unmoved := never_moved(run, updates):
        findings.append(_unmoved_finding(unmoved))
    stuck = share_stuck(updates)
    if stuck > WORTH_TELLING:
        findings.append(_stuck_finding(updates, stuck))
    return findings


def share_lost(updates: Sequence[JudgedUpdate]) -> float:
    """The share of the squared norm of the declared moves that is lost; 0 where nothing was to move."""
    total = total_lost = 0.0
    for update in updates:
        sample = update.sample
        before = sample.before[PARAM]
        # K elements stand for all of their parameter.
        move2 = np.where(np.isfinite(update.move), update.move, 0.0) ** 2 * sample.numel / len(update.move)
        stays = (sample.after[PARAM] == before) & _in_reach(update)
        total += float(move2.sum())
        total_lost += float(move2[stays].sum())
    return total_lost / total if total > 0 else 0.0


def _in_reach(update: JudgedUpdate) -> NDArray[np.bool_]:
    """[K] whether a move is so small that rounding may lose it."""
    sample = update.sample
    return np.abs(update.move) <= _ROUNDINGS * FORMATS[sample.dtypes[PARAM]].unit * np.abs(sample.before[PARAM])


def never_moved(run: Run, updates: Sequence[JudgedUpdate]) -> list[JudgedUpdate]:
    """Updates of the first rank's parameters in 16 bits that rounding alone keeps as they are from start to end."""
    (rank,) = data_parallel_ranks(run)[:1] or [min(run.env)]
    env = run.env[rank]
    columns = ("param_digests", "closing_digests", "param_grad_norms")
    looks, closing, norms = ([*run.lists(column, ranks=[rank]).values()] for column in columns)
    looks += closing[-1:]
    # after a change of the parameters, positions are of others
    if env.lists or not closing or not norms or any(len(row) != len(env.params) for row in (*looks, *norms)):
        return []
    changed_LP = np.diff(np.array(looks), axis=0) != 0
    if changed_LP.any(axis=1).sum() < FEWEST:
        return []
    still_P = ~changed_LP.any(axis=0) & (np.stack(norms) > 0).all(axis=0)
    of_still = {
        name: [update for update in updates if update.sample.rank == rank and update.sample.name == name]
        for name, still, dtype in zip(env.params, still_P.tolist(), env.param_dtypes, strict=True)
        if still and dtype in _SHORT
    }
    return [
        update
        for samples in of_still.values()
        if samples and all(update.move.any() and _in_reach(update).all() for update in samples)
        for update in samples
    ]


def share_stuck(updates: Sequence[JudgedUpdate]) -> float:
    """The share of sampled second moments that stayed, of those that were to fall."""
    num_falling = num_stuck = 0
    for update in updates:
        sample = update.sample
        for name in _SECOND_MOMENTS:
            before, after, declared = sample.before.get(name), sample.after.get(name), update.predicted.get(name)
            if before is None or after is None or declared is None:
                continue
            # Rounding explains a moment that stays only where its error is within the tolerance.
            falls = declared < before
            num_falling += int(falls.sum())
            num_stuck += int((falls & (after == before) & (update.excess[name] <= 1)).sum())
    return num_stuck / num_falling if num_falling else 0.0


def _dtypes_text(updates: Sequence[JudgedUpdate], *names: str) -> str:
    dtypes = [update.sample.dtypes for update in updates]
    return listed(sorted({of_name[name] for of_name in dtypes for name in names if name in of_name}))


def _lost_finding(updates: Sequence[JudgedUpdate], share: float) -> Finding:
    affected = AffectedSlices([update.sample for update in updates])
    return affected.finding(
        code=CODE,
        severity="warning",
        claim=f"Rounding loses {share:.0%} of what {affected.optimizer} declares to move (squared norm): parameters "
        f"are {_dtypes_text(updates, PARAM)}.",
        measured=share,
        expected=WORTH_TELLING,
        unit="share of the squared norm of declared moves that is lost (at most)",
        next=(
            "Keep parameters and optimizer states in float32 and compute in lower precision under autocast, or keep a "
            "float32 copy that the optimizer updates.",
        ),
    )


def _unmoved_finding(updates: Sequence[JudgedUpdate]) -> Finding:
    affected = AffectedSlices([update.sample for update in updates])
    num, names = len(affected.names), named_some(affected.names)
    subject = f"The parameter {names} is" if num == 1 else f"{counted(num, 'parameter')} ({names}) are"
    dtypes, largest = _dtypes_text(updates, PARAM), max(float(np.abs(update.move).max()) for update in updates)
    return affected.finding(
        code=CODE,
        severity="confirm",
        claim=f"{subject} {dtypes} and never {'changes' if num == 1 else 'change'}: updates by {affected.optimizer} "
        f"are at most {largest:.2g}, less than half a step of {dtypes} there.",
        measured=float(num),
        expected=0.0,
        unit="parameters that rounding keeps as they are",
        evidence={"kind": "never-moved"},
        next=(
            "Keep parameters and optimizer states in float32 and compute in lower precision under autocast, or keep a "
            "float32 copy that the optimizer updates.",
        ),
    )


def _stuck_finding(updates: Sequence[JudgedUpdate], share: float) -> Finding:
    affected = AffectedSlices([update.sample for update in updates])
    return affected.finding(
        code=CODE,
        severity="info",
        claim=f"{share:.0%} of the second moments of {affected.optimizer} that were to fall stayed where they were: "
        f"their decay is less than half a rounding of {_dtypes_text(updates, *_SECOND_MOMENTS)}.",
        measured=share,
        expected=WORTH_TELLING,
        unit="share of falling second moments that stay (at most)",
        slot="state",
        next=("Keep optimizer states in float32, or use a smaller beta2.",),
    )
