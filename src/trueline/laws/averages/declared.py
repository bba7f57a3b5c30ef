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
    Column(
        "copy_changes",
        "list<int64>",
        "",
        "On sampled steps, of each copy of the weights that the job holds beside its model, seven numbers: which, the "
        "step after whose update it was looked at first (now is before the next update), elements looked at, those of "
        "the weights that have changed since, those of the copy, those at which both are equal now, and those at which "
        "the copy is not between what it was and what the weights were.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe",),
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "average-differs": Code(),
        "average-in-model": Code(dated=True),
        "average-restarts": Code(dated=True),
        "average-updates": Code(),
    },
)
