"""What the column ``evaluated`` holds, for who writes it and who reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """A forward pass in evaluation mode, without gradients, in the step ``step``, on ``rows`` samples. ``source`` is
    the number of the DataLoader that was drawn from last, counted by data set; 0 where that is none, or the one that is
    trained on.
    """

    step: int
    source: int
    rows: int


@dataclass(frozen=True, slots=True)
class EvaluatedPart:
    """The part of a data set that ``source`` reads, ``size`` indices, of which ``common`` are among the ``trained``
    indices of the same data set that the training reads.
    """

    source: int
    size: int
    common: int
    trained: int


def evaluated_text(batches: Sequence[EvaluatedBatch], parts: Sequence[EvaluatedPart]) -> str:
    """The string of the column."""
    return json.dumps([[astuple(batch) for batch in batches], [astuple(part) for part in parts]])


def evaluated(text: str) -> tuple[tuple[EvaluatedBatch, ...], tuple[EvaluatedPart, ...]]:
    """Of one row of the column."""
    batches, parts = json.loads(text)
    return tuple(EvaluatedBatch(*map(int, row)) for row in batches), tuple(
        EvaluatedPart(*map(int, row)) for row in parts
    )
