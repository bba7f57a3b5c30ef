"""What a model is to predict of a sample is among the numbers that it reads of it.

What it finds
-------------
A table from which the column of the target was not dropped, scaled or encoded as it may be. A feature that is known
only once the target is. Windows of a series that end one step late, so that the last value that is read is the one
that is to be predicted. A letter of the answer in the prompt.

Why it matters
--------------
The loss falls to nothing, and so does that of the evaluation, whose data are made alike. The model is of no use where
it has to predict.

How it decides
--------------
At the first 24 steps at most that are looked at, of inputs with two numbers a sample or more, and of a loss with one
target a sample: cross-entropy, binary cross-entropy, squared and Huber loss. A number of the samples tells the target
where it is that in all of them, but for a factor and an offset, to within 8 roundings; or where it is the same for all
samples of one target, and another one for each target. As many numbers as there are targets, less one, tell it together
where each is the same for all samples of one target, as where it is encoded by ones and zeros. What chance makes of
that is counted: each target beyond two must lie on one line, and numbers may only change where targets do, as places
between sorted samples do with the share of borders among them. It is said where the chance over all numbers of a sample
is below 1e-6. Inputs that are called labels or targets, and data of which more than half of the numbers tell the
target, as where a script makes them up of it, are left out. It is to be confirmed, as a task may be to find one of its
inputs.

What it may miss
----------------
Targets that are given away by several numbers together, or by a number that is squared; samples with more than one
target; numbers in the middle of samples of many; sparse inputs; losses by hand.

Example
-------
Number 7 of 20 of each sample of `x`, counted from 0, is the target of mse_loss but for a factor and an offset, in all
512 samples that were looked at.

Wrong and right
---------------
Wrong:

```python
x, y = table.to_numpy(), table["price"].to_numpy()
```

Right:

```python
x, y = table.drop(columns="price").to_numpy(), table["price"].to_numpy()
```
"""

from __future__ import annotations

import math

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.schema.columns.target_features import TargetFeatures, Telling, target_features
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "target-in-inputs"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("target_feature_names", "target_features")
ACROSS_RANKS = False

CHANCE = 1e-6
"""Of a Run in which no number has to do with the target."""
MADE_UP = 0.5
"""Share of the numbers of a sample beyond which a script makes samples of their targets."""


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where no sample has one target."""
    ranks = data_parallel_ranks(run)[:1]
    values = run.lists("target_features", ranks=ranks)
    texts = run.texts("target_feature_names")
    looks = {key[0]: target_features(texts[key], row.tolist()) for key, row in values.items() if key in texts}
    of_steps = {step: look for step, look in sorted(looks.items()) if look is not None}
    if not of_steps:
        raise CannotTell(
            "no loss of torch with one target a sample was seen, of a model that reads several numbers of it",
            reason="by-design",
        )
    # each look has all before it, but for a job that is started again
    steps, last = [*of_steps], [*of_steps.values()][-1]
    by_kind = {"affine": (last.affine, 1), "renamed": (last.renamed, 1), "encoded": (last.grouped, last.targets - 1)}
    for kind, (telling, least) in by_kind.items():
        is_few = least <= telling.num <= MADE_UP * last.numbers
        if is_few and telling.nats >= math.log(last.numbers / CHANCE):
            return [_finding(ranks, steps, last, kind, telling)]
    return []


def _finding(ranks: list[int], steps: list[int], look: TargetFeatures, kind: str, telling: Telling) -> Finding:
    name, place, numbers = look.place(telling.at)
    what = {
        "affine": f"is the target of {look.function} but for a factor and an offset",
        "renamed": f"tells the target of {look.function}: it is a number of its own for each target",
        "encoded": f"tells the target of {look.function}: it is one number for all samples of one target",
    }[kind]
    num = telling.num
    more = f" ({num - 1} more {'does' if num == 2 else 'do'} so)" if num > 1 else ""
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Number {place:,} of {numbers:,} of each sample of {f'`{name}`' if name else 'the input'}, counted from "
        f"0, {what}, in all {counted(look.samples, 'sample')} that were looked at{more}.",
        ranks=tuple(ranks),
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks, phase="batch", names=(name or "samples",)),
        measured=float(num),
        expected=0.0,
        unit="numbers of a sample that tell its target",
        false_alarm_rate=look.numbers * math.exp(-telling.nats),
        evidence={"kind": kind, "input": name, "place": place, "function": look.function, "samples": look.samples},
        next=(
            "Leave that column out of the inputs, or let the window end before the step that is to be predicted; of "
            "a task that is to find one of its inputs, leave it.",
        ),
    )
