"""What the column ``influence`` holds, for who writes it and who reads it."""

from __future__ import annotations

from dataclasses import dataclass, fields

DOUBTS: tuple[str, ...] = (
    "",
    "steps are recorded, and a second backward pass would be recorded, too",
    "the model is compiled, so that its embeddings are not seen",
    "parameters are sharded, and a second backward pass would gather them",
    "the model returned no logits of the shape [batch, positions, classes] with a gradient",
    "no cross-entropy of torch was seen below the loss, or checkpointing keeps its targets",
    "targets are not the next tokens of what an embedding read (another objective, or targets that are not seen)",
    "parts of the model have a backward pass of their own, or are recomputed, and a second one might change them",
    "gradients are not finite, or nothing reaches the embedding",
)
"""Why nothing is known, by its number; 0: something is."""


@dataclass(frozen=True, slots=True)
class Influence:
    """Largest gradients of logits with respect to embeddings: of early logits to ``allowed`` embeddings, those before
    the cut, and to ``later`` ones; ``seen`` of ``positions`` embeddings behind the cut have any. In a packed row the
    same of the logits of later documents to their own embeddings (``document``) and to those of ``earlier`` documents;
    NaN where no borders are known. ``eps`` is that of the coarser dtype of logits and embeddings.
    """

    doubt: float
    allowed: float
    later: float
    seen: float
    positions: float
    document: float
    earlier: float
    eps: float


NUM_FIELDS = len(fields(Influence))
