"""Parts of the model that are in evaluation mode while they are trained, as a column has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class EvaluatingPart:
    """The outermost module ``name`` in evaluation mode ('' is the model): how many ``modules`` of it are, ``dropouts``
    of them that would drop values in training mode, with a probability of ``p`` at most, ``statistics`` that keep
    running statistics, and trained ``params`` that are directly theirs. ``is_norm`` where it is such a layer itself.
    """

    name: str
    modules: int
    dropouts: int
    p: float
    statistics: int
    params: int
    is_norm: bool


def parts_text(parts: Sequence[EvaluatingPart]) -> str:
    """The string of the column."""
    return json.dumps([astuple(part) for part in parts])


def evaluating_parts(text: str) -> tuple[EvaluatingPart, ...]:
    """Of one row of the column."""
    return tuple(EvaluatingPart(*row) for row in json.loads(text))
