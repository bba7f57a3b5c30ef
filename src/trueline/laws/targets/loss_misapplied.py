"""A loss is given what it is not made for: probabilities for logits, rows for single numbers, targets out of range.

What it finds
-------------
`softmax` in front of a cross-entropy, which takes logits, and `sigmoid` in front of its binary form; logits or
probabilities in front of `nll_loss` or `kl_div`, which take logarithms; predictions [B, 1] less targets [B], which
compares each sample with the target of every other; binary targets that are not between 0 and 1; targets of `ctc_loss`
that are its blank, which is no letter; `kl_div` with `reduction="mean"`, which divides by the number of classes as
well; a bootstrap target, r + gamma * max Q(s'), that is not detached. All ranks share such a fault, so that comparing
them shows nothing.

Why it matters
--------------
Nothing fails, and the loss falls somewhat. A softmax twice never lets the model be sure, rows that meet all targets
make it predict their mean, and unbounded targets or a missing logarithm reward what is not asked for.

How it decides
--------------
By the operations themselves, as the graph of the loss has them, at the first 16 sampled steps and then now and then:
what made the input of the loss, looked through views and casts. A softmax of a softmax is one, whatever the values, so
that there is no false alarm; log_softmax of log_softmax changes nothing and is left alone. One number a sample, [B] or
[B, 1], that a difference to constants spreads to [B, B] is reported where no dimension was asked for (`unsqueeze`,
`[:, None]`), as code that compares all pairs on purpose does. Targets are counted on the device. A divergence that is
divided by the classes is an information: it is what `reduction="mean"` says. A target is attached where a regression
(`mse_loss`, `smooth_l1_loss`, `huber_loss`, a difference that is squared) compares the outputs of two calls of the
model, one of them with a constant factor and a constant added to it; it is a warning where values are chosen on the way
(a maximum over actions, a `gather`, the lesser of two critics), and an information elsewhere, as equations in finite
differences have that form, too.

What it may miss
----------------
Losses that are compiled or fused, losses written with other operations, a softmax whose result goes through more
arithmetic first, distances between two predictions; a blank of CTC that is no target; targets made of the same call,
of a model beside it, or with `where`.

Example
-------
The cross-entropy of all ranks is given probabilities: it takes logits and applies softmax itself.

Wrong and right
---------------
Wrong:

```python
loss = F.cross_entropy(model(x).softmax(-1), y)
```

Right:

```python
loss = F.cross_entropy(model(x), y)
```
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from trueline.laws.targets.loss_inputs import loss_finding, loss_inputs
from trueline.schema.columns.loss_inputs import (
    DIVERGENCE_BY_CLASS,
    DIVERGENCE_OF_PROBABILITIES,
    LOG_MISSING,
    ROWS_WITH_ROWS,
    SIGMOID_TWICE,
    SOFTMAX_TWICE,
    TARGET_ATTACHED,
    VALUE_ATTACHED,
    LossInputs,
)
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "loss-misapplied"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("loss_inputs",)
ACROSS_RANKS = False


class _Said(NamedTuple):
    claim: str
    """With the ranks for {}."""
    advice: str


_SAID = {
    SOFTMAX_TWICE: _Said(
        "The cross-entropy of {} is given probabilities: it takes logits and applies softmax itself.",
        "Give cross_entropy what the last layer returns; softmax or sigmoid belongs where probabilities are shown.",
    ),
    SIGMOID_TWICE: _Said(
        "binary_cross_entropy_with_logits of {} is given probabilities: it takes logits and applies sigmoid itself.",
        "Give it what the last layer returns, without sigmoid or softmax.",
    ),
    LOG_MISSING: _Said(
        "nll_loss of {} is given numbers that are no logarithms of probabilities.",
        "Put log_softmax in front of nll_loss, or use cross_entropy on what the last layer returns.",
    ),
    DIVERGENCE_OF_PROBABILITIES: _Said(
        "kl_div of {} is given probabilities as its input, which must be their logarithms.",
        "Write kl_div(x.log_softmax(-1), target.softmax(-1), reduction='batchmean').",
    ),
    ROWS_WITH_ROWS: _Said(
        "Each prediction of {} is compared with the target of every sample: [B, 1] less [B] is [B, B].",
        "Give predictions and targets one shape: model(x).squeeze(-1), or target[:, None].",
    ),
    TARGET_ATTACHED: _Said(
        "The regression of {} is to a target that the model itself makes, r + discount * max Q, and gradients go into "
        "that, too: it pulls the target to the prediction.",
        "Put the target under torch.no_grad(), or detach() it; if the gradient of the residual is meant, leave it.",
    ),
    VALUE_ATTACHED: _Said(
        "The regression of {} is to a number plus a multiple of another output of the model, and gradients go into "
        "both.",
        "If it is a target of temporal differences, put it under torch.no_grad(); if it is an equation that both are "
        "to obey, leave it.",
    ),
    DIVERGENCE_BY_CLASS: _Said(
        "kl_div of {} is averaged over classes as well as samples: it is as many times too small as there are classes.",
        "Write reduction='batchmean', which divides by samples alone.",
    ),
}


_MAY_BE_MEANT = (DIVERGENCE_BY_CLASS, VALUE_ATTACHED)


class _Counted(NamedTuple):
    claim: str
    """Behind the share of targets, with the ranks for {}."""
    advice: str
    numbers: Callable[[LossInputs], tuple[int, int]]
    """Targets that are wrong, and all."""


_COUNTED = {
    "targets-beyond": _Counted(
        "the targets of a binary cross-entropy of {} are below 0 or above 1.",
        "Make targets 0 and 1 (of labels -1 and 1: (y + 1) / 2), or use the loss that they are made for.",
        attrgetter("beyond", "binary_targets"),
    ),
    "targets-blank": _Counted(
        "the targets of the CTC loss of {} are its blank, which stands for no letter.",
        "Give ctc_loss the index of the blank that the vocabulary has (`blank=`, 0 unless given).",
        attrgetter("blanks", "ctc_targets"),
    ),
}


def check(run: Run) -> list[Finding]:
    """A Finding for each misuse; raises ``CannotTell`` where no graph of a loss was seen."""
    looked = loss_inputs(run)
    found: list[Finding] = []
    for kind, said in _SAID.items():
        at = [key for key, each in looked.items() if kind in each.kinds]
        severity = "info" if kind in _MAY_BE_MEANT else "warning"
        if at:
            found.append(loss_finding(run, CODE, severity, said.claim, at, kind=kind, advice=(said.advice,)))
    for kind, said in _COUNTED.items():
        at = {key: said.numbers(each) for key, each in looked.items() if said.numbers(each)[0]}
        if at:
            share = sum(wrong for wrong, _ in at.values()) / sum(targets for _, targets in at.values())
            claim, advice = f"{share:.0%} of {said.claim}", (said.advice,)
            found.append(
                loss_finding(
                    run, CODE, "warning", claim, at, kind=kind, advice=advice, measured=share, unit="share of targets"
                )
            )
    return found
