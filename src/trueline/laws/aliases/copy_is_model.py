"""What the job calls a copy of its model is the model that is trained.

What it finds
-------------
A target network, a reference model, a teacher or an average that is the very module that is trained, under a second
name: `agent.target_net is agent.policy_net`. And a module that `load_state_dict` gives its own tensors, as where a
target network that is none is set to the weights.

Why it matters
--------------
The targets of the loss move with every update, or the distance to the reference is 0 for ever. Nothing fails, and
copying the weights over changes nothing.

How it decides
--------------
By what is there. In front of the first update that is watched, objects, modules of Python and the functions that are
running are asked for names of the model and of its direct parts. One holder has two names for one module, and one of
them calls it a copy (target, ref, reference, teacher, ema, average, shadow, old, frozen). And all parameters that
`load_state_dict` of the model or a part of it is given are its own memory. A job may do without a copy, so this is for
you to confirm. A model of which only adapters or other parts are trained is left alone: it is its own reference, with
these switched off.

What it may miss
----------------
Names of closures, and such as call nothing a copy. Copies that are made later.

Example
-------
target_net and policy_net of DQN are one module, the one that is trained: what comes from target_net changes with every
update.

Wrong and right
---------------
Wrong:

```python
self.policy_net = model
self.target_net = model
```

Right:

```python
self.policy_net = model
self.target_net = copy.deepcopy(model).requires_grad_(False)
```
"""

from __future__ import annotations

import json

from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, ranks_text
from trueline.store.reader import Run

CODE = "copy-is-model"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("module_aliases", "own_loads")
ACROSS_RANKS = False

_ADVICE = (
    "Make the copy with copy.deepcopy(model).requires_grad_(False), and set it to the weights where it is meant to "
    "follow. If the job is meant to do without a copy, nothing is wrong."
)


def check(run: Run) -> list[Finding]:
    """A Finding of names, else of loads; raises ``CannotTell`` where neither shows anything."""
    aliases = [(step, rank, json.loads(text)) for (step, rank), text in sorted(run.texts("module_aliases").items())]
    values, measured = run.pivot("own_loads")
    loads = [
        (int(run.steps[i]), run.ranks[j], int(values[i, j]))
        for i in range(len(values))
        for j in range(values.shape[1])
        if measured[i, j]
    ]
    if not aliases and not loads:
        raise CannotTell(
            "no name of the model calls it a copy, and it was not given its own tensors", reason="by-design"
        )
    return [_of_names(run, aliases)] if aliases else [_of_loads(run, loads)]


def _of_names(run: Run, aliases: list[tuple[int, int, list[list[str]]]]) -> Finding:
    step, _, rows = aliases[0]
    ranks = tuple(sorted({rank for _, rank, _ in aliases}))
    pairs = list(dict.fromkeys(f"{name} and {usual} of {holder}" for holder, name, usual in rows))
    copies = list(dict.fromkeys(name for _, name, _ in rows))
    change = "changes" if len(copies) == 1 else "change"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{listed(pairs[:3])} are one module, the one that is trained: what comes from {listed(copies[:3])} "
        f"{change} with every update ({ranks_text(ranks, all_ranks=run.ranks)}).",
        ranks=ranks,
        step_first=step,
        step_last=step,
        measured=float(len(pairs)),
        expected=0.0,
        unit="names of a copy that the trained module has",
        false_alarm_rate=0.0,
        evidence={"kind": "names", "names": rows[:100]},
        next=(_ADVICE,),
    )


def _of_loads(run: Run, loads: list[tuple[int, int, int]]) -> Finding:
    steps = sorted({step for step, _, _ in loads})
    ranks = tuple(sorted({rank for _, rank, _ in loads}))
    num = sum(num for _, rank, num in loads if rank == ranks[0])
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"load_state_dict gave the model its own weights {counted(num, 'time')}, first at step {steps[0]} or "
        f"before, which changes nothing ({ranks_text(ranks, all_ranks=run.ranks)}): what was to be a copy, such as a "
        "target network, is the model that is trained.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=float(num),
        expected=0.0,
        unit="loads of a module from its own tensors",
        false_alarm_rate=0.0,
        evidence={"kind": "loads", "steps": steps[:100]},
        next=(_ADVICE,),
    )
