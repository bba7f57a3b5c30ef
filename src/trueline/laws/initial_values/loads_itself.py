"""A network is given its own state again and again, and stays as it was.

What it finds
-------------
`target.load_state_dict(target.state_dict())` where the state of the network that is trained was meant: a target network
of Q-learning, a reference, a teacher or a copy for evaluation that is to follow.

Why it matters
--------------
The copy stays as it was drawn, and everything that comes from it: the targets of Q-learning are those of a random
network for ever. Nothing fails, and the loss falls.

How it decides
--------------
By memory: all that the load was given lies where the module has it. It is for you to confirm where a module that is no
part of the trained one was given it before two sampled steps or more of one start of the job, after its first update,
and some of its elements (up to 16 of each of 9 tensors) were the same at all of these loads. A network whose state is
mixed in place before it is given back, or read from a checkpoint into its own memory, changes between two loads, and is
left alone, as is a single load. Of the trained model and its parts `copy-is-model` says so.

What it may miss
----------------
Copies without `load_state_dict`, as loops over two lists of parameters; loads with `assign=True`; jobs that are not
started by `trueline run`.

Example
-------
load_state_dict put the state of QNet into itself 7 times by step 109 (train.py:40): it stays as it was.

Wrong and right
---------------
Wrong:

```python
target_net.load_state_dict(target_net.state_dict())
```

Right:

```python
target_net.load_state_dict(eval_net.state_dict())
```
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from trueline.judge.compared_ranks import sites_of
from trueline.laws.initial_values.columns import OwnLoad, self_loads_from
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "loads-itself"
CALLS = {"": ("load_state_dict",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

MIN_ROWS = 2
"""Sampled steps before which there were more loads: one may be a check of the script's own."""
MOST_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class _Loads:
    """Loads of one module after the first update: its last row, how many, and steps before which there were more."""

    load: OwnLoad
    num: int
    steps: tuple[int, ...]


def check(run: Run) -> list[Finding]:
    """Findings on modules, at most ``MOST_FINDINGS``; raises ``CannotTell`` where no loads were looked at."""
    texts = run.texts("self_loads") if run.has("self_loads") else {}
    if not texts:
        raise CannotTell(run.manifest.only_from_start("what is loaded"), reason="not-recorded")
    ranks_by_load: dict[tuple[OwnLoad, int], tuple[_Loads, list[int]]] = {}
    begin = int(run.restarts[-1]) if len(run.restarts) else int(run.steps[0])
    changed = run.lists("self_loads_changed")
    for rank in sorted({rank for _, rank in texts}):
        rows = [
            (step, self_loads_from(texts[step, rank]), changed[step, rank].tolist())
            for step, at in sorted(texts)
            if at == rank and step >= begin and (step, rank) in changed
        ]
        for loads in _staying(rows):
            ranks_by_load.setdefault((loads.load, loads.num), (loads, []))[1].append(rank)
    return [_finding(run, loads, tuple(ranks)) for loads, ranks in ranks_by_load.values()][:MOST_FINDINGS]


def _staying(rows: list[tuple[int, tuple[OwnLoad, ...], list[float]]]) -> list[_Loads]:
    """Modules that were given their own state before ``MIN_ROWS`` steps or more, and stay as they were."""
    steps: defaultdict[int, list[int]] = defaultdict(list)
    first: dict[int, int] = {}
    num: dict[int, int] = {}
    for index, (step, loads, _) in enumerate(rows):
        for load in loads:
            # the first row has what was loaded before any update
            first.setdefault(load.key, 0 if index else load.num)
            if index and load.num > num.get(load.key, 0):
                steps[load.key].append(step)
            num[load.key] = load.num
    return [
        _Loads(load, load.num - first[load.key], tuple(steps[load.key]))
        for _, loads, changed in rows[-1:]
        for load, has_changed in zip(loads, changed, strict=False)
        if len(steps[load.key]) >= MIN_ROWS and not has_changed
    ]


def _finding(run: Run, loads: _Loads, ranks: tuple[int, ...]) -> Finding:
    load = loads.load
    where = f" ({load.line})" if load.line else ""
    on = "" if len(ranks) == len(run.ranks) else f" on {ranks_text(ranks)}"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"load_state_dict put the state of {load.into} into itself {loads.num:,} times by step {loads.steps[-1]}"
        f"{where}{on}: it stays as it was.",
        ranks=ranks,
        step_first=loads.steps[0],
        step_last=loads.steps[-1],
        sites=sites_of(loads.steps[0], ranks[:1], phase="param", names=("all",)),
        measured=float(loads.num),
        expected=0.0,
        unit="loads of a module's own state",
        false_alarm_rate=None,
        evidence={"kind": "itself", "into": load.into, "line": load.line},
        next=(
            "Give it the state of the network that it is to follow: target.load_state_dict(model.state_dict()).",
            "state_dict() is no copy: what is to be put back later is kept by copy.deepcopy.",
        ),
    )
