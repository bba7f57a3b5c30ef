"""The columns of the workers table that this law measures or alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "average_facts",
        "string",
        "",
        "On some sampled steps, JSON of the averages of parameters that `average_values` are of: which elements, at "
        "which moments, and what is declared.",
        after="norm_values",
    ),
    Column(
        "average_values",
        "list<float64>",
        "",
        "Of each of these averages, at each moment, of each slice the elements of the average and of what it follows.",
    ),
)
