"""What the columns ``influence``, ``row_influence`` and ``order_influence`` hold, for who writes and who reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

DOUBTS: tuple[str, ...] = (
    "",
    "steps are recorded, and a second backward pass would be recorded, too",
    "the model is compiled, so that its embeddings are not seen",
    "parameters are sharded, and a second backward pass would gather them",
    "the model returned no logits of the shape [batch, positions, classes] with a gradient",
    "no cross-entropy of torch was seen below the loss, or checkpointing keeps its targets",
    "targets are not the next tokens of what an embedding read (another objective, or targets that are not seen)",
    "parts of the model have a backward pass of their own, are recomputed or have lent out memory, and a second one "
    "might change them",
    "gradients are not finite, or nothing reaches the embedding",
    "the model's inputs are not all seen, have no first dimension in common (as graphs), or have one row",
    "no output of the model has a gradient and a row for each sample (samples may be in another place than the first "
    "dimension of inputs, or outputs be of pairs)",
    "no module without parts was seen to read the model's inputs and to have a gradient",
    "batch normalisation lets rows influence each other, as it is meant to in training",
    "what reads the model's inputs first recurs over their first dimension: positions, or `batch_first` is forgotten",
    "the model embeds no tokens of the shape [batch, positions] that its layers keep, with a gradient",
    "no token stands twice in a row",
    "no layer lets positions influence each other",
    "dropout makes equal tokens differ",
)
"""Why nothing is known, by its number; 0: something is."""
(
    RECORDED,
    COMPILED,
    SHARDED,
    NO_LOGITS,
    NO_TARGETS,
    NOT_NEXT,
    OWN_BACKWARD,
    NOT_FINITE,
    NO_ROWS,
    NO_OUTPUT,
    NO_ENTRY,
    NORMALISED,
    RECURRENT,
    NO_TOKENS,
    NO_PAIRS,
    NOT_MIXED,
    DROPS,
) = range(1, len(DOUBTS))


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


BESIDE = (
    *("mask", "label", "target", "pos", "type_ids", "len", "size", "num_", "count", "weight", "scale"),
    *("guidance", "use_"),
)
"""Words in the names of inputs that are numbers beside a sample: they tell it from others no more than they must."""


@dataclass(frozen=True, slots=True)
class RowInfluence:
    """Largest gradients of what the model returned for some rows of its batch with respect to what its first modules
    made of their ``own`` inputs, and of ``others``; ``mixed`` of ``rows`` other rows have any. Where an attention mask
    leaves positions out, the same of what it returned at positions that it keeps, to ``kept`` ones and to those of
    ``padding``. NaN: not looked at. ``sure`` is 1 where the first dimension is known to be of samples, ``convolved``
    where the model has convolutions over positions. ``eps`` is that of the coarsest dtype. Where padding is seen and
    outputs have positions, ``among`` is the same from some kept positions to others; ``by_index`` is 1 where there is
    no mask, and padding is what an embedding's ``padding_idx`` stands at. Of ``samples`` that are joined into one graph
    ``with_edges`` have an edge of their own. ``lost`` is 1 where the model is given a number for each row that differs
    between rows, and what one of its first modules reads in its place is the same for all. ``counted`` is the number of
    places by which positions, 0, 1, 2, ... in each row, are counted through padding on the left at most.
    """

    doubt: float
    sure: float = math.nan
    own: float = math.nan
    others: float = math.nan
    mixed: float = math.nan
    rows: float = math.nan
    kept: float = math.nan
    padding: float = math.nan
    convolved: float = math.nan
    eps: float = math.nan
    among: float = math.nan
    by_index: float = 0.0
    samples: float = math.nan
    with_edges: float = math.nan
    lost: float = 0.0
    counted: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderInfluence:
    """Of ``pairs`` of equal tokens in one row, the largest distance between the gradients to their embeddings, of the
    last position of the first layer that mixes positions, as a share of the larger (``apart``): 0 where nothing tells
    their places apart. ``eps`` is that of the coarsest dtype. ``placed`` is 1 where the model is given positions,
    ``tells_places`` where it has parts that are called so.
    """

    doubt: float
    pairs: float = math.nan
    apart: float = math.nan
    eps: float = math.nan
    placed: float = 0.0
    tells_places: float = 0.0
