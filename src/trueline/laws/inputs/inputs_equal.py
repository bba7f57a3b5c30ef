"""Two inputs of a model are bitwise the same at every step.

What it finds
-------------
A state and the one after it that are one array, which the environment writes over; two views of a sample that are one,
as the augmentation was made once; an anchor and its positive, a chosen and a rejected answer that are the same column;
a condition that is the input itself.

Why it matters
--------------
The model is to learn from the difference between two things, and there is none. The loss falls all the same, and often
faster.

How it decides
--------------
By equality of digests, in every pass of the first 16 sampled steps and then of some, 8 at least: two arguments of one
shape and dtype whose rows differ, and that are others from step to step. Labels, masks and positions are left out, and
what an attention is called with by name (query, key and value). Nothing is estimated. It is to be confirmed, as a model
may be called with one tensor twice on purpose.

What it may miss
----------------
Inputs of two models, inputs that share most samples and not all, and inputs that are concatenated before the call.

Example
-------
`state` and `next_state` are bitwise the same at each of 20 steps that were looked at.

Wrong and right
---------------
Wrong:

```python
memory.append((state, action, env.step(action)))  # env returns the array that `state` is
```

Right:

```python
memory.append((state.copy(), action, env.step(action).copy()))
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from trueline.judge.compared_ranks import sites_of
from trueline.laws.inputs.names import POSITIONS
from trueline.laws.inputs.tensors import ByStep, looked_at
from trueline.schema.columns.batch_features import TARGETS
from trueline.schema.columns.influence import BESIDE
from trueline.schema.columns.input_values import InputValue
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "inputs-equal"
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("input_facts", "input_values")
ACROSS_RANKS = False

MIN_STEPS = 8
"""Steps at which two inputs are looked at before anything is said of them."""
CHANGING = 0.5
"""Share of the steps with content of their own, from which on inputs change."""
ATTENDED = ("query", "key", "value", "q", "k", "v", "src", "tgt")
"""Arguments of an attention, which may be one tensor."""

Pair = tuple[str, str]


def check(run: Run) -> list[Finding]:
    """A Finding for each pair; raises ``CannotTell`` where no inputs were seen, or at too few steps."""
    steps_by_pair: defaultdict[Pair, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for rank, of_rank in looked_at(run, fewest=MIN_STEPS).items():
        for pair, steps in _equal_pairs(of_rank):
            steps_by_pair[pair][rank] = steps
    return [_finding(run, pair, steps) for pair, steps in steps_by_pair.items()]


def _equal_pairs(tensors: ByStep) -> Iterator[tuple[Pair, tuple[int, ...]]]:
    """Names of two inputs that are equal at all steps at which both were seen, and these steps."""
    values: defaultdict[str, dict[int, InputValue]] = defaultdict(dict)
    for step, of_step in tensors.items():
        for value in of_step:
            if _tells_samples_apart(value):
                values[value.fact.name][step] = value
    for first, second in combinations(values, 2):
        steps = tuple(sorted(values[first].keys() & values[second].keys()))
        pairs = [(values[first][step], values[second][step]) for step in steps]
        digests = {value.digest for value, _ in pairs}
        if (
            len(pairs) >= MIN_STEPS
            and len(digests) >= CHANGING * len(pairs)
            and all(_is_equal(*pair) for pair in pairs)
        ):
            yield (first, second), steps


def _tells_samples_apart(value: InputValue) -> bool:
    fact = value.fact
    name = fact.name.lower().partition("[")[0]
    if (
        fact.is_target
        or fact.name in POSITIONS
        or name in (*TARGETS, *ATTENDED)
        or any(word in name for word in BESIDE)
    ):
        return False
    return len(fact.shape) > 0 and fact.shape[0] > 1 and not value.rows_alike and fact.dtype != "torch.bool"


def _is_equal(first: InputValue, second: InputValue) -> bool:
    is_alike = (first.fact.shape, first.fact.dtype) == (second.fact.shape, second.fact.dtype)
    return is_alike and first.digest == second.digest


def _finding(run: Run, pair: Pair, steps_by_rank: dict[int, tuple[int, ...]]) -> Finding:
    ranks = tuple(sorted(steps_by_rank))
    steps = steps_by_rank[ranks[0]]
    location = "" if len(run.ranks) == 1 else f" on {ranks_text(ranks, all_ranks=run.ranks)}"
    first, second = (f"`{name}`" if name else "an input without a name" for name in pair)
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Two inputs of the model are bitwise the same in every sample{location}: {first} and {second}, at each "
        f"of {counted(len(steps), 'step')} that were looked at.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="batch", names=tuple(name or "samples" for name in pair)),
        measured=float(len(steps)),
        expected=0.0,
        unit="steps at which they are the same",
        false_alarm_rate=None,
        evidence={"kind": "-".join(pair), "inputs": list(pair), "steps": list(steps[:100])},
        next=(
            "Print both in front of the call, and look where the second one is made: an array that is written in "
            "place must be copied where it is kept.",
        ),
    )
