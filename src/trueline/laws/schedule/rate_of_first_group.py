"""A schedule by hand reaches the first parameter group only.

What it finds
-------------
`optimizer.param_groups[0]["lr"] = …` in a script whose optimizer has several groups: those with and without weight
decay, or a backbone and a head. The others keep the rate that they began with.

Why it matters
--------------
The loss falls, the rate that is logged is that of the first group, and the rest of the model trains to the end at a
rate that was to fall.

How it decides
--------------
Exactly, and for you to confirm: no scheduler of torch drives the optimizer, which is the one of all updates, and the
rate of its first group changes while those of all others, which are not 0, stay bit for bit. One change is enough
where all groups began with one rate; otherwise it takes three, as a group that begins apart may be meant to stay apart.
Groups that the script itself tells apart, by an entry of its own such as `fix_lr`, are left alone.

What it may miss
----------------
A loop that leaves out other groups than all but the first; rates that are set by a scheduler with a function for each
group.

Example
-------
The learning rate of the first parameter group goes from 0.02 to 0.000387 at steps 0-79, and those of groups 1 and 2
stay at 0.2: a schedule by hand sets that of the first group only.

Wrong and right
---------------
Wrong:

```python
optimizer.param_groups[0]["lr"] = rate(step)
```

Right:

```python
for group in optimizer.param_groups:
    group["lr"] = rate(step) * group["lr_scale"]
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.laws.schedule.by_hand import rates_by_hand
from trueline.laws.schedule.followed import UPDATES_AT_LEAST
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, named_some
from trueline.store.reader import Run

CODE = "rate-of-first-group"
CALLS = {"": ("optimizer", "step")}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr",)
ACROSS_RANKS = False

_OF_TORCH = frozenset({
    "params", "num_params", "lr", "initial_lr", "weight_decay", "name", "betas", "eps", "momentum", "dampening",
    "alpha", "nesterov", "maximize", "foreach", "capturable", "differentiable", "fused", "amsgrad",
    "decoupled_weight_decay",
})  # fmt: skip
"""Entries of groups that differ for other reasons than the schedule."""


def check(run: Run) -> list[Finding]:
    """The Finding where the first group moves alone; raises ``CannotTell`` where no rate is set by hand."""
    steps_T, rates_TG = rates_by_hand(run)
    changes_G = (np.diff(rates_TG, axis=0) != 0).sum(axis=0)
    first, *others = changes_G.tolist()
    start_G = rates_TG[0]
    fewest = 1 if np.all(start_G == start_G[0]) else UPDATES_AT_LEAST
    if not others or first < fewest or any(others) or not np.all(start_G[1:] > 0) or _told_apart(run):
        return []
    return [_finding(run, steps_T, rates_TG)]


def _told_apart(run: Run) -> bool:
    """True if groups have entries of the script's own that are not the same."""
    rank = data_parallel_ranks(run)[0]
    groups: Sequence[Mapping[str, Any]] = run.env[rank].optimizer.get("groups", ()) if rank in run.env else ()
    entries = [{key: value for key, value in group.items() if key not in _OF_TORCH} for group in groups]
    keys = {key for group in entries for key in group}
    return any(len({repr(group.get(key)) for group in entries}) > 1 for key in keys)


def _finding(run: Run, steps_T: np.ndarray, rates_TG: np.ndarray) -> Finding:
    first, last, num_others = rates_TG[0, 0], rates_TG[-1, 0], rates_TG.shape[1] - 1
    others = [f"{number}" for number in range(1, num_others + 1)]
    staying = list(dict.fromkeys(f"{rate:.3g}" for rate in rates_TG[0, 1:]))
    stays = "that of group 1 stays" if num_others == 1 else f"those of groups {named_some(others)} stay"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"The learning rate of parameter group 0 goes from {first:.3g} to {last:.3g} in "
        f"{counted(len(steps_T), 'update')}, and {stays} at {listed(staying)}: a schedule by hand sets the rate of the "
        "first group only.",
        ranks=tuple(data_parallel_ranks(run)),
        step_first=int(steps_T[0]),
        step_last=int(steps_T[-1]),
        measured=1.0,
        expected=float(num_others + 1),
        unit="parameter groups whose rate follows the schedule",
        false_alarm_rate=None,
        evidence={"kind": "first", "rates": rates_TG[-1].tolist()},
        next=(
            "Set group['lr'] of every group in optimizer.param_groups; keep ratios between groups in an entry of each.",
        ),
    )
