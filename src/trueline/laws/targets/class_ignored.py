"""A class of the data is the label that the loss ignores: it is never trained.

What it finds
-------------
`ignore_index=0`, as 0 pads labels, where 0 is a class as well: the first tag, the background, the negative class. An
`ignore_index` that stands in code from another task.

Why it matters
--------------
Nothing fails. Samples or tokens of that class teach nothing, the model never predicts it, and a loss or an accuracy
that ignores it, too, looks as it should.

How it decides
--------------
By counting, at sampled steps, over all ranks: labels that a cross-entropy leaves out by its `ignore_index`, where that
is one of its classes (not -100, not 255 of 150). Labels of single samples are all counted; there is no padding among
them. Of labels of rows, as of tokens or pixels, those are counted that stand between two that count: padding stands at
an end. It is said of 8 or more. Where the model has an embedding of as many rows as there are classes, these are
tokens, which scripts leave out by the id of the padding on purpose, and nothing is said. Nothing is estimated. It is to
be confirmed, as a label may stand for what is not to be learnt.

What it may miss
----------------
Weights of 0 for a class, masks that a script applies, losses with several terms that keep labels, other losses.

Example
-------
Class 0 is ignored by the loss (ignore_index=0) and is the label of 38% of the places that are not padding: it is
never trained.

Wrong and right
---------------
Wrong:

```python
labels = pad_sequence(tags, batch_first=True, padding_value=0)  # and 0 is the tag "outside"
criterion = nn.CrossEntropyLoss(ignore_index=0)
```

Right:

```python
labels = pad_sequence(tags, batch_first=True, padding_value=-100)
criterion = nn.CrossEntropyLoss()
```
"""

from __future__ import annotations

from collections import defaultdict

from trueline.judge.compared_ranks import sites_of
from trueline.schema.columns.ignored_class import IgnoredClass
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "class-ignored"
CALLS = {"": ("cross_entropy",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("ignored_class",)
ACROSS_RANKS = False

FEWEST = 8
"""Labels that are left out, of which it is said."""

StepRank = tuple[int, int]


def check(run: Run) -> list[Finding]:
    """A Finding for each class; raises ``CannotTell`` where no loss ignores one of its classes."""
    rows = {key: IgnoredClass.from_row(row.tolist()) for key, row in run.lists("ignored_class").items()}
    if not rows:
        raise CannotTell(
            "no cross-entropy was seen that ignores a label which is one of its classes", reason="by-design"
        )
    by_class = defaultdict[tuple[int, int], dict[StepRank, IgnoredClass]](dict)
    for key, labels in rows.items():
        if not labels.token:
            by_class[labels.ignored, labels.classes][key] = labels
    return [
        _finding(run, label, looks)
        for (label, _), looks in by_class.items()
        if sum(labels.left_out for labels in looks.values()) >= FEWEST
    ]


def _finding(run: Run, label: int, looks: dict[StepRank, IgnoredClass]) -> Finding:
    steps, ranks = sorted({step for step, _ in looks}), tuple(sorted({rank for _, rank in looks}))
    left_out, trained = (sum(getattr(row, name) for row in looks.values()) for name in ("left_out", "trained"))
    share = left_out / (left_out + trained)
    single = all(labels.elements == 1 for labels in looks.values())
    of_what = "samples" if single else "places that are not padding"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Class {label} is ignored by the loss (ignore_index={label}) and is the label of {share:.0%} of the "
        f"{of_what}: it is never trained.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="loss", names=("all",)),
        measured=share,
        expected=0.0,
        unit="share of labels that are ignored",
        false_alarm_rate=None,
        evidence={"kind": "samples" if single else "places", "class": label, "left_out": left_out, "trained": trained},
        next=(
            f"If class {label} is to be learnt, give padding a label of its own, -100, and leave ignore_index out; if "
            f"{label} stands for what is not to be learnt (background, parts of words), leave it.",
        ),
    )
