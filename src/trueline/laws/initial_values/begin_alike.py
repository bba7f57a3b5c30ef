"""Modules begin with the same random values, bit for bit.

What it finds
-------------
Layers, experts or heads that are copies of one that was just made: `copy.deepcopy` of a layer, as
`nn.TransformerEncoder` makes of the one that it is given; a seed that is set again before each layer is made.

Why it matters
--------------
They were meant to begin differently. Where what they read and what comes of it is alike, their gradients are, too, and
they stay alike: an ensemble of one, experts that are one expert. Layers behind each other learn, but more slowly.

How it decides
--------------
Exactly: at the first step, before the update, matrices of one shape and more than one name have digests that are equal,
and their values look as an initialiser drew them (`frozen-untrained` says how that is seen). All of them have gradients
later. So copies that no gradient trains, as a target network or the average of a model, are left alone, and so are
weights that were trained before, as where layers of a pretrained model are repeated.

What it may miss
----------------
Initialisers of one's own, matrices of fewer than 128 elements, normal values in matrices of fewer than 4,096 beside a
bias that is not zero, and shards, of which each rank holds others.

Example
-------
encoder.layers.0, encoder.layers.1 and encoder.layers.2 begin with the same drawn values, bit for bit, in 4
weights of each: they are copies of one.

Wrong and right
---------------
Wrong:

```python
layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(6))
```

Right:

```python
layers = nn.ModuleList(Layer() for _ in range(6))  # or draw each anew: nn.init.xavier_uniform_
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.initial_values.drawn import looks_drawn
from trueline.laws.initial_values.initial_values import InitialParams, initial_params
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "begin-alike"
CALLS = {"": ("deepcopy", "TransformerEncoder", "TransformerDecoder")}
QUESTION = "start"
NEEDS: tuple[str, ...] = ("initial_values", "param_digests", "param_grad_norms")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings on modules that begin alike; raises ``CannotTell`` where the beginning was not seen."""
    digests = run.lists("param_digests")
    for params in initial_params(run):
        if (0, params.rank) in digests:
            trained = _with_gradient(run, params)
            alike = _alike(params, digests[0, params.rank].tolist(), trained)
            if alike:
                # ranks begin alike: one of them says it all
                return [_finding(run, params.rank, modules, names) for modules, names in alike.items()]
    return []


def _with_gradient(run: Run, params: InitialParams) -> set[str]:
    rows = run.lists("param_grad_norms", ranks=[params.rank]).values()
    rows = [row for row in rows if len(row) == len(params.names)]
    if not rows:
        return set()
    return {params.names[p] for p in np.flatnonzero((np.stack(rows) > 0).any(axis=0)).tolist()}


def _alike(
    params: InitialParams, digests: Sequence[int], trained: set[str]
) -> Mapping[tuple[str, ...], list[list[str]]]:
    """By modules that begin alike, the names of their matrices, those of one in each."""
    if len(digests) < len(params.names):
        return {}
    value_of = dict(params.items())
    equal: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for position, shape, value in params.matrices():
        name = params.names[position]
        if name in trained and looks_drawn(value, shape, value_of.get(f"{name.rpartition('.')[0]}.bias")):
            equal[digests[position], shape].append(name)
    alike: defaultdict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for names in equal.values():
        if len(names) > 1:
            alike[_modules(names)].append(names)
    return alike


def _modules(names: Sequence[str]) -> tuple[str, ...]:
    """What differs in ``names``, without the end that all have: ``layers.0``, ``layers.1``."""
    parts = [name.split(".") for name in names]
    num = 0
    while all(len(path) > num + 1 for path in parts) and len({path[-num - 1] for path in parts}) == 1:
        num += 1
    return tuple(".".join(path[: len(path) - num]) for path in parts)


def _finding(run: Run, rank: int, modules: Sequence[str], matrices: Sequence[Sequence[str]]) -> Finding:
    names = [name for row in matrices for name in row]
    what = f"in {counted(len(matrices), 'weight')} of each"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{named_some(list(modules))} begin with the same drawn values, bit for bit, {what} "
        f"({ranks_text([rank], all_ranks=run.ranks)}): they are copies of one.",
        ranks=(rank,),
        step_first=0,
        step_last=0,
        sites=sites_of(0, [rank], phase="param", names=names[:MAX_SITES]),
        measured=float(len(modules)),
        expected=1.0,
        unit="modules with the same initial values",
        false_alarm_rate=0.0,
        evidence={"kind": "copies", "modules": list(modules[:100]), "names": names[:100]},
        next=(
            "Draw the weights of each anew before the optimizer is made: for p in module.parameters(): if p.dim() > 1: "
            "nn.init.xavier_uniform_(p). Or make each by its constructor, and not by a copy or after the same seed.",
        ),
    )
