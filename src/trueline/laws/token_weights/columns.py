"""The columns of the workers table that this law measures or alone reads, and what ``token_weights`` holds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "token_weights",
        "list<float64>",
        "",
        "On some sampled steps, for each backward pass `TokenWeights`: why nothing is known, tokens, least and "
        "greatest weight of one in the loss, loss scale taken out, rounding, reduction, scalings.",
        after="update_values",
    ),
    Column(
        "grads_factor",
        "float64",
        "",
        "By what the gradients that backward left were multiplied before the optimizer received them (clipping: < 1), "
        "loss scale taken out, at a few elements; None if unseen or by no single number.",
        after="target_places",
    ),
    Column(
        "loss_scale",
        "float64",
        "",
        "What a GradScaler of torch multiplied the losses of this step by, where `grads_factor` was looked for and the "
        "optimizer holds the model's own parameters.",
    ),
    Column(
        "loss_scaler",
        "list<float64>",
        "",
        "Where a GradScaler of torch steps the optimizer: updates that it left out since the one before, its scale at "
        "this one, growth and backoff factor.",
    ),
    Column(
        "closing_loss_scaler",
        "list<float64>",
        "",
        "The same at the end, where it left out updates after this one, the last.",
    ),
    Column(
        "passes_begun",
        "int32",
        "backward passes",
        "Where `token_weights` are, backward passes of the step, those among them whose gradients were then cleared.",
        after="update_left_out",
    ),
)

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
