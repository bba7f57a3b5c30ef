"""Shards of tensor parallelism that are copies of each other.

What it finds
-------------
Ranks that hold one model together, and whose shards of every cut matrix began equal, bit for bit, as each rank drew its
own from the same seed: a layer then has as many different units as one shard has.

Why it matters
--------------
Shards that begin equal get equal gradients, so they stay equal: the model trains, and is a fraction as wide as it says.
No loss that is not finite, no difference between replicas, and no curve shows it.

How it decides
--------------
By equality of digests. Cut are the matrices that are DTensors along an axis on which others are held in copies, with 64
elements a shard or more. It is found where all of them are equal on two ranks at the first look, and some still are
after an update has changed them. So initial values that are the same in every row, zeros or ones, rows of Mamba's
`A_log`, copies of one dense layer as experts, are no finding: with other gradients they part at the first update.

What it may miss
----------------
Shards of which some only began equal, and those that part at once, as dropout that differs between the ranks makes
them. Tensor parallelism without DTensors: its shards cannot be told from replicas. Runs with one look at
parameters.

Example
-------
Ranks 0 and 1 hold one model together, and equal values of 2 shards of matrices that are cut between them,
from step 0 on: layers.0.up.weight and layers.0.down.weight.

Wrong and right
---------------
Wrong:

```python
with torch.device("meta"):
    model = Net()
parallelize_module(model, tp_mesh, plan)
model.to_empty(device="cpu")
torch.manual_seed(0)
model.reset_parameters()  # where DTensors have no random numbers of their own, every rank draws the same
```

Right:

```python
torch.manual_seed(0)
model = Net()
parallelize_module(model, tp_mesh, plan)  # cuts what was drawn as a whole
```
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.judge.series.parts_alike import MIN_ELEMENTS, SharedParams, shared_params
from trueline.judge.series.whole_parameters import param_names
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "shards-equal"
QUESTION = "replicas"
NEEDS: tuple[str, ...] = ("param_digests",)


def check(run: Run) -> list[Finding]:
    """A Finding for each set of ranks whose shards are equal; raises ``CannotTell`` where no shards of one model are
    known, or parameters were looked at once only.
    """
    shared = shared_params(run)
    if shared is None:
        raise CannotTell("no ranks are known to hold shards of the same matrices", reason="by-design")
    if len(shared.by_step) < 2:
        raise CannotTell("it takes two looks at the parameters", reason="too-few-steps")
    findings: list[Finding] = []
    for ranks, copies in shared.sets:
        equal = {pair: names for pair in combinations(ranks, 2) if (names := _equal_matrices(shared, pair, copies))}
        if equal:
            names = {name for pair_names in equal.values() for name in pair_names}
            findings.append(_finding(shared, tuple(sorted({rank for pair in equal for rank in pair})), names))
    return findings


def _equal_matrices(shared: SharedParams, pair: tuple[int, int], copies: frozenset[str]) -> list[str]:
    """Cut matrices that two ranks hold equal though updates have changed them; none where some began unequal."""
    env = shared.env[pair[0]]
    steps = [step for step, by_rank in sorted(shared.by_step.items()) if set(pair) <= by_rank.keys()]
    indices = [index for index in _matrix_indices(env, shared.env[pair[1]]) if param_names(env)[index] not in copies]
    if len(steps) < 2 or not indices:
        return []
    first, last = (np.stack([shared.by_step[step][rank][indices] for rank in pair]) for step in (steps[0], steps[-1]))
    # parts that are drawn as one whole begin unequal, all of them
    if not np.array_equal(first[0], first[1]):
        return []
    stayed_equal = (last[0] == last[1]) & (last[0] != first[0])
    return [param_names(env)[index] for index, is_equal in zip(indices, stayed_equal, strict=True) if is_equal]


def _matrix_indices(env: RankEnv, env_of_peer: RankEnv) -> list[int]:
    """Positions of parameters with two dims of more than one element, as large on both ranks, and large enough."""
    return [
        index
        for index, name in enumerate(env.params)
        if sum(size > 1 for size in env.param_shapes[index]) == 2
        and env.param_sizes[name] == env_of_peer.param_sizes.get(name)
        and env.param_sizes[name] >= MIN_ELEMENTS
    ]


def _finding(shared: SharedParams, ranks: tuple[int, ...], equal_names: Collection[str]) -> Finding:
    steps = [step for step, by_rank in shared.by_step.items() if set(ranks) <= set(by_rank)]
    names = [name for name in shared.env[ranks[0]].params if name in equal_names]
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{capitalized(ranks_text(ranks))} hold one model together, and equal values of "
        f"{counted(len(names), 'shard')} of matrices that are cut between them, from step {min(steps)} on: "
        f"{named_some(names)}.",
        ranks=ranks,
        step_first=min(steps),
        step_last=max(steps),
        sites=sites_of(min(steps), ranks[:2], phase="param", names=names[: MAX_SITES // 2]),
        measured=float(len(names)),
        expected=0.0,
        unit="matrices of which shards are equal",
        false_alarm_rate=0.0,
        evidence={"names": names[:100]},
        next=(
            "Draw the initial values of the whole model before it is cut, or give each of these ranks a seed of its "
            "own for what is cut.",
        ),
    )
