"""The layer that returns the logits has many times more outputs than there are labels.

What it finds
-------------
A classifier that keeps the 1,000 outputs of what it was trained on before, and is trained on 10 classes or 200:
`out_features` was set, which changes a number and no weight, the new head is another attribute than `forward` uses, or
the number of classes stands in a setting that the model does not read.

Why it matters
--------------
Nothing fails: labels are valid, and the cross-entropy pushes the other outputs down. It begins far above the logarithm
of the classes that there are, gradients go into what is never right, and predictions may name classes that are not.

How it decides
--------------
By the graph of the loss and its targets, at the first sampled steps and then at gaps that double. Of a cross-entropy
whose logits a layer with 65 outputs or more returns, with weights of its own and one target a sample: all labels that
were seen are in the first quarter of the outputs, and fill it as labels from 0 on do (each look has at least half as
many different ones as equal shares up to the highest label would give). If all outputs were labels, sorted by how
frequent they are after Zipf's law, as many targets would all be in the first quarter with a probability of 1e-6 at
most: so many have to be seen. Targets for each token or pixel are left alone, as are similarities.

It is for you to confirm: classes may come later, as in training on one task after the other.

What it may miss
----------------
Heads of fewer outputs, frozen ones, those of models that shard their parameters, losses that are not torch's
cross-entropy, data sets with few frequent classes, language models.

Example
-------
fc.weight makes 1,000 logits a sample, and the labels of 128 targets at 8 steps go from 0 to 9: 990 outputs are never
right.

Wrong and right
---------------
Wrong:

```python
model.fc.out_features = 10
```

Right:

```python
model.fc = nn.Linear(model.fc.in_features, 10)
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from trueline.judge.compared_ranks import MAX_SITES
from trueline.schema.columns.loss_values import HeadLabels
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "outputs-unused"
CALLS = {"": ("cross_entropy",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("head_labels", "sample_digests")
ACROSS_RANKS = False

MANY = 4
"""Times as many outputs as the highest label needs, from which on it is said: pretrained heads have 1,000 for 200."""
CHANCE = 1e-6
"""Probability of as few labels where all outputs are classes that are as frequent as Zipf's law has them."""
FULL = 0.5
"""Share of the different labels that equal shares would give: labels from 0 on, and no two of many token ids."""
EULER = 0.5772156649
"""Harmonic numbers are about ln n plus this."""


def check(run: Run) -> list[Finding]:
    """A Finding for each layer with many outputs too many; raises ``CannotTell`` where no such layer was seen."""
    rows = {key: HeadLabels(*map(int, row)) for key, row in run.lists("head_labels").items()}
    if not rows:
        raise CannotTell(
            "no layer with 65 outputs or more was seen whose logits a cross-entropy takes", reason="by-design"
        )
    by_head = defaultdict[tuple[int, int], dict[tuple[int, int], HeadLabels]](dict)
    for key, labels in rows.items():
        by_head[labels.outputs, labels.weight][key] = labels
    return [
        _finding(run, *head, looks)
        for head, looks in by_head.items()
        if _are_few(head[0], list(looks.values())) and _has_one_a_sample(run, looks)
    ]


def _are_few(outputs: int, looks: Sequence[HeadLabels]) -> bool:
    """Whether all labels are in the first part of the outputs beyond chance, and fill it from 0 on."""
    highest = max(labels.highest for labels in looks)
    if highest < 1 or MANY * (highest + 1) > outputs:
        return False
    return _chance(sum(labels.targets for labels in looks), outputs) <= CHANCE and _fill(looks, highest)


def _chance(num_targets: int, outputs: int) -> float:
    """That all targets are in the first part of as many classes, under Zipf's law: a ratio of harmonic numbers."""
    share = (math.log(outputs / MANY) + EULER) / (math.log(outputs) + EULER)
    return share**num_targets


def _fill(looks: Sequence[HeadLabels], highest: int) -> bool:
    """Whether each look has as many different labels as labels from 0 to ``highest`` have."""
    num = highest + 1
    return all(
        labels.different > 1 and labels.different >= FULL * num * (1 - (1 - 1 / num) ** labels.targets)
        for labels in looks
        if labels.targets > 1
    )


def _has_one_a_sample(run: Run, looks: dict[tuple[int, int], HeadLabels]) -> bool:
    """Whether no step has more targets than samples: tokens and pixels have."""
    steps, ranks = sorted({step for step, _ in looks}), sorted({rank for _, rank in looks})
    steps_L, ranks_L, lengths_L, _ = run.flat("sample_digests", ranks=ranks, steps=steps)
    keys = zip(steps_L.tolist(), ranks_L.tolist(), strict=True)
    samples: dict[tuple[int, int], int] = dict(zip(keys, lengths_L.tolist(), strict=True))
    return all(labels.targets <= samples.get(key, 0) for key, labels in looks.items())


def _finding(run: Run, outputs: int, weight: int, looks: dict[tuple[int, int], HeadLabels]) -> Finding:
    steps, ranks = sorted({step for step, _ in looks}), tuple(sorted({rank for _, rank in looks}))
    highest = max(labels.highest for labels in looks.values())
    num_targets = sum(labels.targets for labels in looks.values())
    params = run.env[ranks[0]].params if ranks[0] in run.env else ()
    name = params[weight] if 0 <= weight < len(params) else "The last layer"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{name} makes {outputs:,} logits a sample, and the labels of {counted(num_targets, 'target')} at "
        f"{counted(len(steps), 'step')} of {ranks_text(ranks, all_ranks=run.ranks)} go from 0 to {highest:,}: "
        f"{outputs - highest - 1:,} outputs are never right.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for step, rank in sorted(looks))[:MAX_SITES],
        measured=float(outputs),
        expected=float(highest + 1),
        unit="outputs",
        false_alarm_rate=CHANCE,
        evidence={"kind": "many", "outputs": outputs, "highest": highest, "targets": num_targets},
        next=(
            "Put a new layer with as many outputs as there are classes in the place of the old one; to set "
            "`out_features` or a number in the settings changes no weight.",
        ),
    )
