"""The column of the workers table that this law measures, and what one row of it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trueline.schema.column import Column

FUNCTIONS = (
    "",
    "cross-entropy",
    "binary cross-entropy",
    "CTC loss",
    "mean squared error",
    "smooth L1 loss",
    "Huber loss",
    "compiled code",
)
"""What computes a term, by its number; '' is what has no name."""
LIKELIHOODS = ("cross-entropy", "binary cross-entropy", "CTC loss")
REGRESSIONS = ("mean squared error", "smooth L1 loss", "Huber loss")

OF_ALL, OF_ONE = 3, 3
"""Numbers that the whole loss, and one term, are multiplied by, and as many that they are divided by."""
NUM_FIELDS = 7 + 2 * OF_ALL + 2 * OF_ONE

COLUMNS: tuple[Column, ...] = (
    Column(
        "loss_terms",
        "list<float64>",
        "",
        "At a few sampled steps, for each term of the loss of each backward pass `LossTerm`: pass, number of the "
        "function, how many alike, targets that it is a sum over, its value, the loss, whether the term is a mean, "
        "then by what the whole loss and the term alone are multiplied and divided (NaN: no more).",
    ),
    Column(
        "class_counts",
        "list<int64>",
        "targets",
        "At the same steps, of the only cross-entropy of each backward pass: classes, targets that count, and where "
        "there are few classes those of each.",
    ),
    Column(
        "target_variance",
        "float64",
        "",
        "At the same steps, of the only mean squared error of each backward pass the variance of its targets over "
        "samples, in the mean over passes.",
    ),
    Column(
        "constant_terms",
        "list<float64>",
        "",
        "At the same steps, of each backward pass whose loss has summands without a gradient `ConstantTerm`: how many, "
        "what they add, the rest of the loss (NaN: not computed), the rounding unit of its dtype.",
    ),
    Column(
        "likelihood_ratios",
        "list<int64>",
        "",
        "At the same steps, of the losses of all backward passes, for each ratio of probabilities `LikelihoodRatio`: "
        "pass, what is at work, elements, those that are exactly 1 (of a log-ratio 0), those that are clamped.",
    ),
    Column(
        "class_weights",
        "list<float64>",
        "",
        "At the same steps, of the first term of each backward pass whose classes have weights, `ClassWeights`: what "
        "has weights, how far those of one class are apart, samples, targets, then the weights and the targets of each "
        "class; targets of all passes of the step.",
    ),
    Column(
        "head_labels",
        "list<int64>",
        "",
        "At the same steps, of the layer that returns the logits of the first cross-entropy, where it has 65 outputs "
        "or more, `HeadLabels`: outputs, index of its weight (-1: unknown), targets that count, different labels, the "
        "highest label.",
    ),
)


@dataclass(frozen=True)
class LossTerm:
    """One term of the loss that a backward pass was called on, or ``alike`` of them that have the same numbers.

    ``targets`` is how many targets a cross-entropy adds up that does not average by itself, and ``value`` its mean over
    them; None where unknown. ``loss`` is the whole. ``is_mean`` is true of a term that is a mean
    before it has any factor. All numbers of the column are float64.
    """

    backward_pass: int
    function: str
    alike: int
    targets: float | None
    value: float | None
    loss: float
    is_mean: bool
    all_times: tuple[float, ...]
    all_over: tuple[float, ...]
    multipliers: tuple[float, ...]
    divisors: tuple[float, ...]

    @property
    def factor(self) -> float:
        """By what it is multiplied by itself, beside what the whole loss is."""
        return math.prod(self.multipliers) / math.prod(self.divisors)

    @property
    def common(self) -> float:
        """By what the whole loss is multiplied."""
        return math.prod(self.all_times) / math.prod(self.all_over)


def terms_of(row: Sequence[float]) -> Iterator[LossTerm]:
    """The terms in one row of the column."""
    for start in range(0, len(row), NUM_FIELDS):
        fields = (float(x) for x in row[start : start + NUM_FIELDS])
        number, function, alike, targets, value, loss, is_mean, *factors = fields
        ends = (OF_ALL, 2 * OF_ALL, 2 * OF_ALL + OF_ONE, NUM_FIELDS)
        starts = (0, *ends[:-1])
        sides = [
            tuple(factor for factor in factors[first:end] if not math.isnan(factor))
            for first, end in zip(starts, ends, strict=True)
        ]
        name = FUNCTIONS[int(function)] if int(function) < len(FUNCTIONS) else ""
        measured = (None if math.isnan(targets) else targets, None if math.isnan(value) else value)
        yield LossTerm(int(number), name, int(alike), *measured, loss, is_mean == 1, *sides)
