"""What a row of the column ``loss_inputs`` holds, for who writes it and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SOFTMAX_TWICE = "softmax-twice"
SIGMOID_TWICE = "sigmoid-twice"
LOG_MISSING = "log-missing"
DIVERGENCE_OF_PROBABILITIES = "divergence-of-probabilities"
DIVERGENCE_BY_CLASS = "divergence-by-class"
ROWS_WITH_ROWS = "rows-with-rows"

KINDS = (
    SOFTMAX_TWICE,
    SIGMOID_TWICE,
    LOG_MISSING,
    DIVERGENCE_OF_PROBABILITIES,
    DIVERGENCE_BY_CLASS,
    ROWS_WITH_ROWS,
)
"""What can be wrong with what a loss is given, as its graph shows it: bit n of the first number is kind n."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Of the backward passes of a step: what is wrong; the targets of binary cross-entropies, and how many of them are
    below 0 or above 1; the targets of cross-entropies that average or add up over all that count, beside which a mask
    of padding was seen, how many of these targets the mask leaves out, and in how many rows.
    """

    kinds: frozenset[str]
    binary_targets: int
    beyond: int
    targets: int
    padded: int
    padded_rows: int

    def __add__(self, other: LossInputs) -> LossInputs:
        return LossInputs(
            self.kinds | other.kinds,
            self.binary_targets + other.binary_targets,
            self.beyond + other.beyond,
            self.targets + other.targets,
            self.padded + other.padded,
            self.padded_rows + other.padded_rows,
        )

    @classmethod
    def of(cls, row: Sequence[int]) -> LossInputs:
        """From the numbers of a pass."""
        bits, *numbers = (int(each) for each in row)
        return cls(frozenset(kind for bit, kind in enumerate(KINDS) if bits >> bit & 1), *numbers)

    def to_row(self) -> list[int]:
        """The numbers of the column."""
        bits = sum(1 << KINDS.index(kind) for kind in self.kinds)
        return [bits, self.binary_targets, self.beyond, self.targets, self.padded, self.padded_rows]
