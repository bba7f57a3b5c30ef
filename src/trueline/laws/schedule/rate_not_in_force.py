"""The learning rate of the command is not that of the updates.

What it finds
-------------
A command that holds a learning rate (`--lr 0.0005`, `--learning_rate=5e-5`, `optim.lr=1e-3`), while no update since the
start has it, nor a multiple of it that ranks or batches explain. Where the job was started again, and the rate is that
of the start before, it is a warning: loading the states put it back. Else it is to be confirmed.

Why it matters
--------------
`optimizer.load_state_dict` restores the settings of the groups with the states, the learning rate among them, and so
does the `load_state_dict` of a scheduler with its base rates: who resumes with a lower rate trains at the old one, and
nothing says so. An option that no code reads has no effect either.

How it decides
--------------
Exactly. The rate in force is the one that a schedule begins from (`initial_lr`) in each parameter group, or the group's
own where that stays the same; a rate that changes without a schedule of torch tells nothing. It follows the command
where one of these is its number, or that times (or divided by) the ranks, micro-batches or samples of an update, any of
them together, the roots of these, or one of them over 256, as batches are scaled by; one group is enough. So it does
where any update had just that rate, or a group names it as the largest of its schedule (`max_lr`).

What it may miss
----------------
Rates in files of configuration, and options of other names. A command with several different rates is left alone, and
so is a job that trains several models.

Example
-------
The command has --lr 0.0005, and all 60 updates since step 60 have the learning rate 0.01, as those of the start before.

Wrong and right
---------------
Wrong:

```python
optimizer = AdamW(model.parameters(), lr=args.lr)
optimizer.load_state_dict(checkpoint["optimizer"])  # with the old rate
```

Right:

```python
optimizer = AdamW(model.parameters(), lr=args.lr)
optimizer.load_state_dict(checkpoint["optimizer"])
for group in optimizer.param_groups:
    group["lr"] = args.lr
```
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.command_rates import rates_of_command
from trueline.laws.schedule.scaled_rates import scale_factors
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

CODE = "rate-not-in-force"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr", "update_facts", "num_micro", "sample_digests")
ACROSS_RANKS = False

_NEAR = 1e-6
"""Share by which a rate may differ from a product that a script computes in float32."""


def check(run: Run) -> list[Finding]:
    """A Finding where no update has the rate; raises ``CannotTell`` where the command or the updates tell none."""
    options = dict(rates_of_command(run.manifest.command))
    if not options:
        raise CannotTell("the command holds no learning rate", reason="by-design")
    if len(set(options.values())) > 1 or run.models:
        raise CannotTell("the command holds several learning rates, or the job trains several models")
    (name, rate), *_ = options.items()
    begin = max(run.restarts, default=int(run.steps[0]) if len(run.steps) else 0)
    rank = data_parallel_ranks(run)[:1]
    rows = {step: row for (step, _), row in run.lists("lr", ranks=rank).items() if len(row)}
    rates_by_step = {step: row for step, row in rows.items() if step >= begin}
    in_force = _in_force(run, rates_by_step, rank)
    if not in_force:
        raise CannotTell("rates change without a schedule of torch, or no update was sampled")
    # Some schedules begin below the rate that they are made for, and come to it.
    reached = [
        *(float(in_use) for row in rates_by_step.values() for in_use in row),
        *_settings(run, rates_by_step, rank, "max_lr"),
    ]
    follows = any(
        math.isclose(in_use, rate * factor, rel_tol=_NEAR) for in_use in in_force for factor in scale_factors(run)
    )
    if follows or any(math.isclose(in_use, rate, rel_tol=_NEAR) for in_use in reached):
        return []
    return [_finding(run, name, in_force, rates_by_step, [row for step, row in rows.items() if step < begin])]


def _in_force(run: Run, rates_by_step: Mapping[int, np.ndarray], ranks: Sequence[int]) -> list[float]:
    """Rates that schedules of the groups begin from, and those of groups without one that stay the same."""
    rates = scheduled = _settings(run, rates_by_step, ranks, "initial_lr")
    has_facts = any(step in rates_by_step and rank in ranks for step, rank in run.texts("update_facts"))
    widths = {len(row) for row in rates_by_step.values()}
    # Optimizers that take turns have rates of their own in one column: each that comes back is in force.
    if has_facts and not scheduled and len(widths) == 1:
        rows = np.stack(list(rates_by_step.values()))
        rates = [float(column[0]) for column in rows.T if np.all(column == column[0])]
    return list(dict.fromkeys(rates))


def _settings(run: Run, rates_by_step: Mapping[int, np.ndarray], ranks: Sequence[int], name: str) -> list[float]:
    """Numbers that groups of the optimizer have by ``name`` at updates that were sampled."""
    values: list[float] = []
    for (step, rank), text in run.texts("update_facts").items():
        if step in rates_by_step and rank in ranks:
            groups: Mapping[str, Mapping[str, Any]] = json.loads(text)["groups"]
            values += [float(group[name]) for group in groups.values() if isinstance(group.get(name), (int, float))]
    return values


def _finding(
    run: Run,
    name: str,
    in_force: Sequence[float],
    rates_by_step: Mapping[int, np.ndarray],
    before: Sequence[np.ndarray],
) -> Finding:
    start = run.manifest.attempts[-1] if run.manifest.attempts else None
    held_states = not before and bool(start and start.updates)
    first, last = next(iter(rates_by_step)), list(rates_by_step)[-1]
    last_before = float(before[-1][0]) if before else math.nan
    is_old = any(math.isclose(rate, last_before, rel_tol=_NEAR) for rate in in_force)
    rates = named_some([f"{rate:.4g}" for rate in in_force])
    begins = (
        "have the learning rate"
        if all(np.all(row == row[0]) for row in _columns(rates_by_step))
        else "follow a schedule from"
    )
    claim = (
        f"The command has {name}, and all {counted(len(rates_by_step), 'update')} since step {first} {begins} {rates}"
    )
    claim += ", as the start before had." if is_old else "."
    claim += " The optimizer held states when they began." if held_states else ""
    severity: Severity = "warning" if is_old else "confirm"
    return Finding(
        code=CODE,
        severity=severity,
        claim=claim,
        ranks=tuple(data_parallel_ranks(run)),
        step_first=first,
        step_last=last,
        measured=in_force[0],
        expected=float(re.split(r"[= ]", name)[-1]),
        unit="learning rate (of the command)",
        false_alarm_rate=0.0,
        evidence={"kind": "loaded" if is_old else "not-read", "option": name, "rates": list(in_force)},
        next=(
            "Set group['lr'] of each group after optimizer.load_state_dict(), which restores the old one; the "
            "load_state_dict() of a scheduler restores its base_lrs."
            if is_old or held_states
            else "Look for where the option is read. If the rate is meant, nothing is wrong.",
        ),
    )


def _columns(rates_by_step: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """[T] of each parameter group, where all updates have as many."""
    rows = list(rates_by_step.values())
    return list(np.stack(rows).T) if len({len(row) for row in rows}) == 1 else []
