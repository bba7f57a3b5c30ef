"""What a row of the column ``ignored_class`` holds, for who writes it and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IgnoredClass:
    """Of the cross-entropies of a step: the label ``ignored`` that they leave out though it is one of their
    ``classes``, and how many ``elements`` a label has; ``left_out`` labels are it, of longer ones between two that
    count, and ``trained`` ones count. ``token`` is 1 where the model has an embedding of as many rows as there are
    classes, so that these may be tokens.
    """

    ignored: int
    classes: int
    elements: int
    left_out: int
    trained: int
    token: int

    @classmethod
    def from_row(cls, row: Sequence[int]) -> IgnoredClass:
        """From the numbers of a step."""
        return cls(*map(int, row))
