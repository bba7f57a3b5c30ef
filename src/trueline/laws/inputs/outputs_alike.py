"""A model returns the same for all samples.

What it finds
-------------
Units that are all dead or saturated, so that only the last bias is left; a generator, an encoder or a network of
values that has collapsed; inputs that are multiplied by 0 or overwritten on their way.

Why it matters
--------------
The loss stays at what the best constant comes to, and looks like a task that is hard. No further training helps where
no gradient comes back through dead units.

How it decides
--------------
At the first 16 sampled steps and then at some, of the first forward pass: all numbers that a model returns for each
sample, if it returns a gradient through them, are compared among the samples of the batch. It is said where none of
them differs by more than 16 roundings of float32, from some step to the end of the Run, at 8 steps or more that were
looked at, while inputs differ among the samples. A head that begins at 0 returns the same for all only until it is
trained. Nothing is estimated. It is to be confirmed, as what is trained may be a constant.

What it may miss
----------------
Outputs that differ by noise, as dropout and batch norm leave it in training; outputs that are nearly the same; models
that return a loss; outputs whose first dimension is not that of samples.

Example
-------
The model returns the same for all samples of a batch since step 12, at each of 20 steps that were looked at.

Wrong and right
---------------
Wrong:

```python
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)  # the first update leaves all units below 0
```

Right:

```python
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import MOST_RANKS, data_parallel_ranks, sites_of
from trueline.laws.inputs.tensors import tensors_of
from trueline.schema.columns.batch_features import is_target
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "outputs-alike"
QUESTION = "batch"
NEEDS: tuple[str, ...] = ("input_facts", "input_values", "output_spread")
ACROSS_RANKS = False

MIN_STEPS = 8
"""Steps at which outputs are looked at and are alike before anything is said of them."""
ROUNDING = 16 * 2.0**-23
"""Share of their size by which numbers differ that are equal but for the order of sums: 16 roundings of float32."""


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where outputs of samples that differ were seen at too few steps."""
    ranks = tuple(data_parallel_ranks(run)[:MOST_RANKS])
    looks = {rank: _looks(run, rank) for rank in ranks}
    if not any(looks.values()):
        raise CannotTell("no model was seen that returns something for each of its samples", reason="by-design")
    if max(map(len, looks.values())) < MIN_STEPS:
        raise CannotTell(f"outputs were looked at in fewer than {MIN_STEPS} steps", reason="too-few-steps")
    alike = {rank: _alike_to_the_end(of_rank) for rank, of_rank in looks.items()}
    alike = {rank: steps for rank, steps in alike.items() if len(steps) >= MIN_STEPS}
    return [_finding(run, alike)] if alike else []


def _looks(run: Run, rank: int) -> dict[int, float]:
    """By step the spread of outputs, where an input differs among the samples."""
    spreads, measured = run.pivot("output_spread")
    column = run.ranks.index(rank)
    at = {int(step): row for row, step in enumerate(run.steps) if measured[row, column]}
    return {
        step: float(spreads[at[step], column])
        for step, values in tensors_of(run, rank).items()
        if step in at
        and any(
            not value.fact.is_target and not is_target(value.fact.name) and value.fact.shape and not value.rows_alike
            for value in values
        )
    }


def _alike_to_the_end(looks: dict[int, float]) -> list[int]:
    """The last steps that were looked at, as far as outputs are alike at all of them."""
    last_apart = max((step for step, spread in looks.items() if not spread <= ROUNDING), default=-1)
    return [step for step in sorted(looks) if step > last_apart]


def _finding(run: Run, alike: dict[int, list[int]]) -> Finding:
    ranks = tuple(sorted(alike))
    steps = alike[ranks[0]]
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"The model returns the same for all samples of a batch since step {steps[0]}, at each of "
        f"{counted(len(steps), 'step')} that were looked at, though its inputs differ.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=("output",)),
        measured=float(len(steps)),
        expected=0.0,
        unit="steps at which all outputs are the same",
        false_alarm_rate=None,
        evidence={"kind": "outputs", "steps": steps[:100]},
        next=(
            "Print how many outputs of each activation are 0, or at its bound: units that are dead for all samples "
            "come back with a smaller learning rate, smaller inputs or an activation with a slope everywhere.",
        ),
    )
