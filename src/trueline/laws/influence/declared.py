"""Influences that a loss must not have: other samples, later tokens, padding."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "influence",
        "list<float64>",
        "",
        "At the step that the plan names `Influence`: why nothing is known, largest gradients of early logits to "
        "embeddings before and behind the cut, how many behind have any, of how many, the same over documents, eps.",
        after="recomputed",
    ),
    Column(
        "row_influence",
        "list<float64>",
        "",
        "At that step `RowInfluence`: why nothing is known, whether the first dimension is surely of samples, largest "
        "gradients of outputs of some rows to their own inputs and to other rows, how many of these have any, of how "
        "many, the same to positions that the attention mask keeps and to others, convolutions, eps, of padding alone "
        "and by index, samples of a joined batch and those with edges, whether a number of each row is lost.",
    ),
    Column(
        "order_influence",
        "list<float64>",
        "",
        "At that step `OrderInfluence`: why nothing is known, pairs of equal tokens in a row, largest distance between "
        "the gradients of the first layer that mixes positions to them as a share of the larger, eps, whether the "
        "model is given positions, whether it has parts that are called so.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe.influence",),
    answers={"unlooked": "influences.unlooked"},
    checks={
        "batch-leak": Code(),
        "influence-leak": Code(),
        "order-ignored": Code(),
    },
)
