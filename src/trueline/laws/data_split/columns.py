"""The columns of the workers table that this law alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "evaluated",
        "string",
        "",
        "On sampled steps after some evaluations, JSON of `EvaluatedBatch`, the forward passes in evaluation mode "
        "without gradients, and of `EvaluatedPart`, the parts of a data set that their loaders read.",
        after="evaluation_values",
    ),
    Column("evaluated_digests", "list<uint64>", "", "One digest per sample of these passes, in order."),
)
