"""What a row of the column ``token_weights`` holds, for who writes it and who reads it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

DOUBTS: tuple[str, ...] = (
    "",
    "no cross-entropy of torch was seen below the loss (it may be fused, compiled, recomputed or written by hand)",
    "the loss has other terms beside one cross-entropy, or label smoothing",
    "the loss is made from several cross-entropies",
    "classes have weights",
    "the loss is no plain multiple of its cross-entropy",
    "the gradient did not reach the cross-entropy",
    "a gradient scaler is used, and it is not clear which losses it scaled",
    "hooks keep what the cross-entropy saved for its backward pass, such as those of checkpointing",
)
"""Why nothing is said of a backward pass, by its number in the row; 0: something is."""

Reduction = Literal["none", "mean", "sum"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "mean", "sum")
"""Of torch (``at::Reduction``), by their number."""


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """One backward pass: how often a token (a target that is not ignored, and that has a weight) counts in what the
    pass descends, with the loss scale taken out. All numbers are float64, as they stand in the column.

    ``rounding`` bounds how far two weights that are meant to be equal may be apart, relative to them; ``scalings`` are
    the products and quotients between loss and cross-entropy.
    """

    doubt: float
    tokens: float
    least: float
    greatest: float
    loss_scale: float
    rounding: float
    reduction: float
    scalings: float


NUM_FIELDS = len(fields(TokenWeights))
