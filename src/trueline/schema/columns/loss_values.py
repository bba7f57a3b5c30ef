"""What rows of the columns ``constant_terms``, ``likelihood_ratios``, ``class_weights`` and ``head_labels`` hold, for
who writes them and who reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ConstantTerm:
    """The ``number`` of summands without a gradient in one loss, what they add (``value``), the ``rest`` of the loss,
    both without the factors of the whole loss, and the rounding ``unit`` of its dtype; NaN where unknown.
    """

    number: int
    value: float
    rest: float
    unit: float

    @classmethod
    def from_row(cls, row: Sequence[float]) -> list[ConstantTerm]:
        """All of a row of the column ``constant_terms``."""
        return [cls(int(row[at]), *map(float, row[at + 1 : at + 4])) for at in range(0, len(row), 4)]


EXPONENTIAL, CLAMPED, LOG_SIGMOID = 0, 1, 2
"""What is at work on a ratio: the exponential of a difference, a clamp to a range around 1, the sigmoid of the
logarithm."""


@dataclass(frozen=True)
class LikelihoodRatio:
    """A ratio of probabilities in the loss of one backward pass; of its ``elements``, ``neutral`` are exactly 1 (of a
    logarithm 0), and ``outside`` are clamped.
    """

    backward_pass: int
    kind: int
    elements: int
    neutral: int
    outside: int

    @classmethod
    def from_row(cls, row: Sequence[int]) -> list[LikelihoodRatio]:
        """All of a row of the column ``likelihood_ratios``."""
        return [cls(*map(int, row[at : at + 5])) for at in range(0, len(row), 5)]


@dataclass(frozen=True)
class HeadLabels:
    """Outputs of the layer that returns logits, the index of its ``weight`` (-1: unknown), and of the first pass of a
    step the ``targets`` that count, how many ``different`` labels they have, and the ``highest`` label.
    """

    outputs: int
    weight: int
    targets: int
    different: int
    highest: int


BY_CLASS, BY_POSITIVE = 0, 1
"""What has a weight: each class, or the positive targets of each output of a binary cross-entropy."""


@dataclass(frozen=True)
class ClassWeights:
    """``weights`` of a loss, float [C], and ``counts`` of the targets that have them, of all ``targets`` (of one
    output). ``units`` are what these come from at most: of labels of pixels, images. ``spread`` is how far weights
    of targets of one class are apart; NaN is the weight of a class without a target.
    """

    kind: int
    spread: float
    units: float
    targets: float
    weights: tuple[float, ...]
    counts: tuple[float, ...]

    @classmethod
    def from_row(cls, row: Sequence[float]) -> ClassWeights:
        """Of a row of the column ``class_weights``."""
        kind, spread, units, targets, *numbers = map(float, row)
        half = len(numbers) // 2
        return cls(int(kind), spread, units, targets, tuple(numbers[:half]), tuple(numbers[half:]))
