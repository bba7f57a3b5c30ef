"""The optimizer receives each worker's own gradient: nothing was averaged.

What it finds
-------------
Parameters or whole groups whose gradients were not reduced: the forward pass went through the raw module and not its
DDP wrapper, a step was taken under `no_sync`, a hand-written all-reduce left a parameter out.

Why it matters
--------------
Every worker trains on its own data alone for those parameters. Replicas diverge from that step on, and gradients are
averaged over models that are no longer the same.

How it decides
--------------
Two facts together, on every worker. First, replicas received different gradients: the sketch of what the optimizer
received differs from the mean over workers by more than rounding allows (`group_used_residual` over
`group_used_floor`); of a parameter that every rank holds whole while others are sharded, its norm does. Second, what
each received is its own: the sketch is a multiple of the sketch of the worker's gradient before reduction, down to
rounding (`group_used_local`), or no reduction of the group was seen though it had a gradient (`group_seen` is 0), or
the norm of a single parameter is, down to rounding, that before reduction on every worker and differs between them.

FSDP2 keeps a gradient after `set_requires_gradient_sync(False)`. One that it still holds
when the optimizer updates (`unreduced_params`) missed this update and goes into a later one: a fact, not a measurement,
so its false-alarm rate is 0.

Sketches are linear and the floors come from the dtype and the number of workers alone, so there is nothing to tune; a
healthy reduction exceeds one of them with a probability of at most 2 exp(-32) = 2.5e-14 (the bounds are on the page
on the maths), and the false-alarm rate is that times the number of comparisons.

What it may miss
----------------
Groups whose gradients are equal on all workers, since then nothing differs; steps between those that are sampled
(`plan.every`). If one worker alone keeps its own gradient while the others reduce, that is reduction-mismatch.
Replicas that update by themselves on purpose (`local_updates`) are not judged.
Parameters that each rank owns from the start and never reduces, such as experts, are not judged.

Example
-------
Ranks 0-3 used their own gradients of embed and head unreduced at steps 0-49.

Wrong and right
---------------
Wrong:

```python
loss = criterion(ddp.module(inputs), targets)  # DDP does not see this forward pass
loss.backward()
```

Right:

```python
loss = criterion(ddp(inputs), targets)
loss.backward()
```
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, any_over, sites_of
from trueline.judge.follows import ByStep
from trueline.judge.series.local_updates import require_equal_replicas
from trueline.judge.series.whole_parameters import EQUAL
from trueline.laws.reduction.reduction import Reductions, masked_steps, read_reductions
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "gradient-not-reduced"
CALLS = {"": ("backward",)}
QUESTION = "replicas"
NEEDS: tuple[str, ...] = (
    "group_used_residual",
    "group_used_floor",
    "group_used_local",
    "group_seen",
    "param_grad_norms",
    "used_param_norms",
    "unreduced_params",
)
FOLLOWS = ByStep()

_WRAP_AGAIN = (
    "Other parameters came to be trained meanwhile: wrap the model again after parameters are unfrozen or replaced, or "
    "before they are frozen. DistributedDataParallel reduces those that asked for gradients when it was made."
)


def check(run: Run) -> list[Finding]:
    """Findings on gradients that were not reduced; raises ``CannotTell`` where that was not measured."""
    require_equal_replicas(run)
    unreduced = run.lists("unreduced_params")
    findings = _held_back_findings(run, unreduced)
    try:
        reductions = read_reductions(run, "group_used_residual")
    except CannotTell:
        # without sketches, a column of FSDP2's that is there has answered
        if not unreduced:
            raise
        return findings
    return findings + ([_not_reduced_finding(reductions)] if reductions.not_reduced.any() else [])


def _held_back_findings(run: Run, unreduced: Mapping[tuple[int, int], np.ndarray]) -> list[Finding]:
    """The Finding on gradients that the framework still held at an update; ``unreduced`` by step and rank."""
    keys = sorted(key for key, positions in unreduced.items() if len(positions))
    if not keys:
        return []
    ranks, steps = sorted({rank for _, rank in keys}), sorted({step for step, _ in keys})
    params = run.env[ranks[0]].params if ranks[0] in run.env else []
    positions = sorted({int(position) for key in keys if key[0] == steps[0] for position in unreduced[key]})
    names = [params[position] for position in positions if position < len(params)]
    names_text = "all parameters" if len(names) == len(params) else named_some(names)
    return [
        Finding(
            code=CODE,
            severity="error",
            claim=f"FSDP2 still held gradients of {names_text} on {ranks_text(ranks)}, not reduced, when the optimizer "
            f"updated at {steps_text(steps, among=sorted({step for step, _ in unreduced}))}: they missed that update "
            "and go into a later one.",
            ranks=tuple(ranks),
            step_first=steps[0],
            step_last=steps[-1],
            sites=sites_of(steps[0], ranks[:2], phase="reduce", names=names[: MAX_SITES // 2]),
            measured=float(len(positions)),
            expected=0.0,
            unit="parameters whose gradient was held back",
            false_alarm_rate=0.0,
            evidence={"kind": "held-back", "names": names[:100], "num_steps": len(steps)},
            next=(
                "Call set_requires_gradient_sync(True) before the last micro-batch of every step, also where the "
                "number of micro-batches varies or an epoch ends within a step.",
            ),
        )
    ]


def _not_reduced_finding(reductions: Reductions) -> Finding:
    not_reduced_T = any_over(reductions.not_reduced, 1)
    first = int(np.argmax(not_reduced_T))
    steps = masked_steps(reductions, not_reduced_T)
    groups = np.flatnonzero(reductions.not_reduced[first])
    names = [name for group in groups for name in _blamed_names(reductions, first, int(group))]
    residual = reductions.groups("group_used_residual")[first][:, groups]
    floor = np.fmax(reductions.groups("group_used_floor")[first][:, groups], EQUAL)
    if np.isnan(residual).all():  # held whole while others are sharded: there are norms only
        norms = reductions.params("used_param_norms")[first][:, reductions.not_reduced_params[first]]
        residual = np.max(norms, axis=0) / np.min(norms, axis=0) - 1
    ranks = reductions.ranks
    return Finding(
        code=CODE,
        severity="error",
        claim=f"{capitalized(ranks_text(ranks))} used their own gradients of {_names_text(reductions, names)} "
        f"unreduced at {steps_text(steps, among=reductions.steps.tolist())}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="reduce", names=names[: MAX_SITES // 2]),
        measured=float(np.nanmax(residual)),
        expected=float(np.nanmax(floor)),
        unit="difference between replicas over the norm of the gradient (at most)",
        false_alarm_rate=reductions.false_alarm_rate,
        evidence={
            "kind": "all" if names == [group.name for group in reductions.env.groups] else "some",
            "names": names[:100],
            "num_steps": len(steps),
        },
        next=(
            *((_WRAP_AGAIN,) if any(len(env.lists) > 1 for env in reductions.run.env.values()) else ()),
            "Call the wrapped module: the object that DistributedDataParallel returned, not its .module.",
            "Let the last micro-batch of every step run outside no_sync, with the forward pass outside as well.",
            "In a hand-written loop, reduce every parameter that has a gradient, after the last backward pass.",
        ),
    )


def _blamed_names(reductions: Reductions, row: int, group: int) -> list[str]:
    """Parameters of the group that were not reduced, or the group's own name where all were not or none stands out."""
    params = reductions.param_names(reductions.not_reduced_params[row], group)
    spec = reductions.env.groups[group]
    return params if params and len(params) < len(spec.params) else [spec.name]


def _names_text(reductions: Reductions, names: list[str]) -> str:
    if names == [group.name for group in reductions.env.groups]:
        return "all parameters"
    return named_some(names)
