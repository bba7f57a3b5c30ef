"""The columns of the workers table that this law measures or alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "reduced_norm",
        "float64",
        "grad",
        "L2 norm of the reduced mean gradient, before clipping.",
        after="used_param_norms",
    ),
    Column("group_reduced_norms", "list<float64>", "grad", "[G] the same per group."),
)
