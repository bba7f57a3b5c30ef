"""What the losses of a Run are the sums of, by step and rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueline.laws.terms.columns import NUM_FIELDS, LossTerm, terms_of
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

StepRank = tuple[int, int]
"""Step and rank."""


def loss_terms(run: Run) -> Mapping[StepRank, Sequence[LossTerm]]:
    """Terms of the losses of all backward passes; raises ``CannotTell`` where no loss was read."""
    rows = run.lists("loss_terms")
    if any(len(row) % NUM_FIELDS for row in rows.values()):
        raise CannotTell("another version of Trueline wrote down what losses are made of", reason="not-recorded")
    terms = {key: list(terms_of(row.tolist())) for key, row in rows.items()}
    if not terms:
        raise CannotTell("no backward pass was seen whose loss is one number with a graph", reason="not-recorded")
    return terms
