"""What a row of the column ``loss_inputs`` holds, for who writes it and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

SOFTMAX_TWICE = "softmax-twice"
SIGMOID_TWICE = "sigmoid-twice"
LOG_MISSING = "log-missing"
DIVERGENCE_OF_PROBABILITIES = "divergence-of-probabilities"
DIVERGENCE_BY_CLASS = "divergence-by-class"
ROWS_WITH_ROWS = "rows-with-rows"
TARGET_ATTACHED = "target-attached"
VALUE_ATTACHED = "value-attached"
LOGITS_CLIPPED = "logits-clipped"
LOGITS_BOUNDED = "logits-bounded"
LOGITS_COSINES = "logits-cosines"
CLASSES_SCRAMBLED = "classes-scrambled"
SOFTMAX_OF_SAMPLES = "softmax-of-samples"
ARGUMENTS_SWAPPED = "arguments-swapped"
ADVANTAGE_ATTACHED = "advantage-attached"
SOFT_TARGET_ATTACHED = "soft-target-attached"

KINDS = (
    SOFTMAX_TWICE,
    SIGMOID_TWICE,
    LOG_MISSING,
    DIVERGENCE_OF_PROBABILITIES,
    DIVERGENCE_BY_CLASS,
    ROWS_WITH_ROWS,
    TARGET_ATTACHED,
    VALUE_ATTACHED,
    LOGITS_CLIPPED,
    LOGITS_BOUNDED,
    LOGITS_COSINES,
    CLASSES_SCRAMBLED,
    SOFTMAX_OF_SAMPLES,
    ARGUMENTS_SWAPPED,
    ADVANTAGE_ATTACHED,
    SOFT_TARGET_ATTACHED,
)
"""What can be wrong with what a loss is given, as its graph shows it: bit n of the first number is kind n."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Of the backward passes of a step: what is wrong; the targets of binary cross-entropies, and how many of them are
    below 0 or above 1; the targets of cross-entropies that average or add up over all that count, beside which a mask
    of padding was seen, how many of these targets the mask leaves out, and in how many rows; the targets of
    connectionist temporal classification (CTC), and how many of them are its blank; the targets of regressions whose
    predictions end in ReLU, in sigmoid (or softmax) and in tanh, and how many of each that cannot give; the rows of CTC
    losses, and those whose loss is infinite; the rows of 0 and 1 that a cross-entropy has as probabilities of the
    classes, and those of them with several 1; beside no mask the targets of cross-entropies, those that are the token
    which fills rows of several lengths up, and in how many rows.
    """

    kinds: frozenset[str]
    binary_targets: int
    beyond: int
    targets: int
    padded: int
    padded_rows: int
    ctc_targets: int = 0
    blanks: int = 0
    relu_targets: int = 0
    beyond_relu: int = 0
    sigmoid_targets: int = 0
    beyond_sigmoid: int = 0
    tanh_targets: int = 0
    beyond_tanh: int = 0
    ctc_rows: int = 0
    infinite_rows: int = 0
    marked_rows: int = 0
    several_marks: int = 0
    unmasked_targets: int = 0
    filled: int = 0
    filled_rows: int = 0

    def __add__(self, more_inputs: LossInputs) -> LossInputs:
        numbers = (number + more for number, more in zip(self.to_row()[1:], more_inputs.to_row()[1:], strict=True))
        return LossInputs(self.kinds | more_inputs.kinds, *numbers)

    @classmethod
    def of(cls, row: Sequence[int]) -> LossInputs:
        """From the numbers of a pass; rows of older versions have fewer."""
        bits, *numbers = (int(number) for number in row)
        return cls(frozenset(kind for bit, kind in enumerate(KINDS) if bits >> bit & 1), *numbers)

    def to_row(self) -> list[int]:
        """The numbers of the column."""
        bits = sum(1 << KINDS.index(kind) for kind in self.kinds)
        return [bits, *(getattr(self, number.name) for number in fields(self)[1:])]
