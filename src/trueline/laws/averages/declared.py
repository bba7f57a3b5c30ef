"""Averages of the weights: EMA, SWA, momentum teachers."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

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

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe",),
    checks={
        "average-differs": Code(),
    },
)
