"""A loss is given what it is not made for: probabilities for logits, logits without sign, targets out of reach.

What it finds
-------------
`softmax` in front of a cross-entropy, which takes logits, and `sigmoid` in front of its binary form; logits or
probabilities in front of `nll_loss` or `kl_div`, which take logarithms; predictions [B, 1] less targets [B], which
compares each sample with the target of every other; binary targets that are not between 0 and 1; targets of `ctc_loss`
that are its blank, which is no letter; logits that end in ReLU, in tanh or as cosines, without a temperature; targets
of a regression that the last activation cannot give, as those below 0 behind ReLU; logits that a view has put from
[B, T, C] into [B, C, T], or from [B, C, H, W] into [N, C]; `log_softmax` over samples; a binary cross-entropy whose
arguments are swapped; rows of several labels beside a softmax; rows of CTC that are too long for their input and are
left out by `zero_infinity`; `kl_div` with `reduction="mean"`, which divides by the number of classes as well; what
gradients should not go into and do: a bootstrap target, r + gamma * max Q(s'), an advantage beside log-probabilities,
the probabilities of a teacher. All ranks share such a fault, so that comparing them shows nothing.

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
divided by the classes is to confirm: it is what `reduction="mean"` says; so are logits with a bound. Targets that an
activation cannot give are to confirm where most steps have some, by more than 1/256 of the largest one: pictures of 8
bits overshoot by as much where they are resized. A target is attached where a regression
(`mse_loss`, `smooth_l1_loss`, `huber_loss`, a difference that is squared) compares the outputs of two calls of the
model, one of them with a constant factor and a constant added to it; it is a warning where values are chosen on the way
(a maximum over actions, a `gather`, the lesser of two critics), and to confirm elsewhere, as equations in finite
differences have that form, too.

What it may miss
----------------
Losses that are compiled or fused, losses written with other operations, a softmax whose result goes through more
arithmetic first, distances between two predictions; logits and predictions whose bound is written otherwise than as
an activation; a blank of CTC that is no target; targets made of the same call,
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
    ADVANTAGE_ATTACHED,
    ARGUMENTS_SWAPPED,
    CLASSES_SCRAMBLED,
    DIVERGENCE_BY_CLASS,
    DIVERGENCE_OF_PROBABILITIES,
    LOG_MISSING,
    LOGITS_BOUNDED,
    LOGITS_CLIPPED,
    LOGITS_COSINES,
    ROWS_WITH_ROWS,
    SIGMOID_TWICE,
    SOFT_TARGET_ATTACHED,
    SOFTMAX_OF_SAMPLES,
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


class _Misuse(NamedTuple):
    claim: str
    """With {} for the ranks."""
    advice: str


_MISUSES = {
    SOFTMAX_TWICE: _Misuse(
        "The cross-entropy of {} is given probabilities: it takes logits and applies softmax itself.",
        "Give cross_entropy what the last layer returns; softmax or sigmoid belongs where probabilities are shown.",
    ),
    SIGMOID_TWICE: _Misuse(
        "binary_cross_entropy_with_logits of {} is given probabilities: it takes logits and applies sigmoid itself.",
        "Give it what the last layer returns, without sigmoid or softmax.",
    ),
    LOG_MISSING: _Misuse(
        "nll_loss of {} is given numbers that are no logarithms of probabilities.",
        "Put log_softmax in front of nll_loss, or use cross_entropy on what the last layer returns.",
    ),
    DIVERGENCE_OF_PROBABILITIES: _Misuse(
        "kl_div of {} is given probabilities as its input, which must be their logarithms.",
        "Write kl_div(x.log_softmax(-1), target.softmax(-1), reduction='batchmean').",
    ),
    ROWS_WITH_ROWS: _Misuse(
        "Each prediction of {} is compared with the target of every sample: [B, 1] less [B] is [B, B].",
        "Give predictions and targets one shape: model(x).squeeze(-1), or target[:, None].",
    ),
    TARGET_ATTACHED: _Misuse(
        "The regression of {} is to a target that the model itself makes, r + discount * max Q, and gradients go into "
        "that, too: it pulls the target to the prediction.",
        "Put the target under torch.no_grad(), or detach() it; if the gradient of the residual is meant, leave it.",
    ),
    VALUE_ATTACHED: _Misuse(
        "The regression of {} is to a number plus a multiple of another output of the model, and gradients go into "
        "both.",
        "If it is a target of temporal differences, put it under torch.no_grad(); if it is an equation that both are "
        "to obey, leave it.",
    ),
    DIVERGENCE_BY_CLASS: _Misuse(
        "kl_div of {} is averaged over classes as well as samples: it is as many times too small as there are classes.",
        "Write reduction='batchmean', which divides by samples alone.",
    ),
    LOGITS_CLIPPED: _Misuse(
        "ReLU makes the logits of {}: none is below 0, and where one is 0 it passes no gradient.",
        "Take the activation behind the last layer away: the loss takes numbers of both signs.",
    ),
    LOGITS_BOUNDED: _Misuse(
        "tanh makes the logits of {}: none is beyond -1 and 1, so that no probability comes near 1, and the loss stays "
        "high.",
        "Take the activation behind the last layer away, or multiply by more than 1.",
    ),
    LOGITS_COSINES: _Misuse(
        "The logits of {} are cosines without a temperature: none is beyond -1 and 1, so that the loss stays above "
        "log(1 + (C - 1) / exp(2)) of C classes.",
        "Divide the similarities by a temperature (0.07 is usual) before the loss.",
    ),
    CLASSES_SCRAMBLED: _Misuse(
        "The logits of {} are put into another shape by a view, which mixes classes with places: what the "
        "cross-entropy takes for the classes of one place is no row of the last layer.",
        "Move the dimension of the classes with transpose, permute or movedim, not with view or reshape.",
    ),
    SOFTMAX_OF_SAMPLES: _Misuse(
        "log_softmax of {} adds up to 1 over samples or places, not over the classes that nll_loss chooses from.",
        "Give log_softmax the dimension of the classes: dim=1 for [B, C] and [B, C, T].",
    ),
    ARGUMENTS_SWAPPED: _Misuse(
        "The binary cross-entropy of {} is given the prediction as its target: its first argument needs no gradient, "
        "its second does.",
        "Swap them: binary_cross_entropy(prediction, target).",
    ),
    ADVANTAGE_ATTACHED: _Misuse(
        "The loss of {} multiplies log-probabilities by an advantage, numbers less a value of the model, and its "
        "gradient goes into that value, too.",
        "Detach the advantage in the loss of the policy: (returns - value).detach().",
    ),
    SOFT_TARGET_ATTACHED: _Misuse(
        "The cross-entropy of {} is to probabilities that another output of the models gives, and gradients go into "
        "these, too: a teacher is pulled to its student.",
        "Make the target under torch.no_grad(), or detach() it; if both are to meet in the middle, leave it.",
    ),
}

_MAY_BE_MEANT = (
    DIVERGENCE_BY_CLASS,
    VALUE_ATTACHED,
    LOGITS_CLIPPED,
    LOGITS_BOUNDED,
    LOGITS_COSINES,
    ARGUMENTS_SWAPPED,
    ADVANTAGE_ATTACHED,
    SOFT_TARGET_ATTACHED,
)
"""Kinds that are no fault by themselves: their Finding is to confirm."""


class _WrongTargets(NamedTuple):
    claim: str
    """Behind the share of targets, with {} for the ranks."""
    advice: str
    counts: Callable[[LossInputs], tuple[int, int]]
    """Numbers of targets that are wrong, and of all."""
    may_be_meant: bool = False
    """It is to confirm, and only where most steps have some: a few outliers are in most data."""


def _out_of_reach(activation: str, which: str, outside: str, advice: str) -> _WrongTargets:
    claim = f"the targets of {{}} are {outside}, which {activation} behind the last layer cannot give."
    return _WrongTargets(claim, advice, attrgetter(f"beyond_{which}", f"{which}_targets"), may_be_meant=True)


_WRONG_TARGETS = {
    "targets-beyond": _WrongTargets(
        "the targets of a binary cross-entropy of {} are below 0 or above 1.",
        "Make targets 0 and 1 (of labels -1 and 1: (y + 1) / 2), or use the loss that they are made for.",
        attrgetter("beyond", "binary_targets"),
    ),
    "targets-blank": _WrongTargets(
        "the targets of the CTC loss of {} are its blank, which stands for no letter.",
        "Give ctc_loss the index of the blank that the vocabulary has (`blank=`, 0 unless given).",
        attrgetter("blanks", "ctc_targets"),
    ),
    "ctc-infinite": _WrongTargets(
        "the rows of the CTC loss of {} are longer than their input allows: their loss is infinite, and "
        "zero_infinity=True makes it 0, so that nothing is learned from them.",
        "Give ctc_loss inputs of at least as many steps as the target has letters, and one more for each that is "
        "doubled; look at input_lengths.",
        attrgetter("infinite_rows", "ctc_rows"),
        may_be_meant=True,
    ),
    "several-classes": _WrongTargets(
        "the rows that a cross-entropy of {} is to meet mark several classes: its softmax can give one of them, and "
        "half of it to two.",
        "Use binary_cross_entropy_with_logits where a sample may have several labels, or divide each row by its sum.",
        attrgetter("several_marks", "marked_rows"),
        may_be_meant=True,
    ),
    "targets-beyond-relu": _out_of_reach(
        "ReLU", "relu", "below 0", "Take the activation behind the last layer away, or scale the targets to its range."
    ),
    "targets-beyond-sigmoid": _out_of_reach(
        "sigmoid", "sigmoid", "below 0 or above 1", "Scale the targets to 0 to 1, or take the activation away."
    ),
    "targets-beyond-tanh": _out_of_reach(
        "tanh", "tanh", "beyond -1 and 1", "Scale the targets to -1 to 1, or take the activation away."
    ),
}


def check(run: Run) -> list[Finding]:
    """A Finding for each misuse; raises ``CannotTell`` where no graph of a loss was seen."""
    inputs = loss_inputs(run)
    findings: list[Finding] = []
    for kind, misuse in _MISUSES.items():
        keys = [key for key, losses in inputs.items() if kind in losses.kinds]
        severity = "confirm" if kind in _MAY_BE_MEANT else "warning"
        if keys:
            findings.append(loss_finding(run, CODE, severity, misuse.claim, keys, kind=kind, advice=(misuse.advice,)))
    for kind, misuse in _WRONG_TARGETS.items():
        of_steps = {key: misuse.counts(losses) for key, losses in inputs.items()}
        counts = {key: (num_wrong, num) for key, (num_wrong, num) in of_steps.items() if num_wrong}
        # Rows that are wrong now and then are outliers, which most data have.
        if misuse.may_be_meant and 2 * len(counts) <= sum(num > 0 for _, num in of_steps.values()):
            continue
        if counts:
            share = sum(num_wrong for num_wrong, _ in counts.values()) / sum(num for _, num in counts.values())
            findings.append(
                loss_finding(
                    run,
                    CODE,
                    "confirm" if misuse.may_be_meant else "warning",
                    f"{share:.0%} of {misuse.claim}",
                    counts,
                    kind=kind,
                    advice=(misuse.advice,),
                    measured=share,
                    unit="share of targets",
                )
            )
    return findings
