"""Running statistics of batch norm."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "norm_facts",
        "string",
        "",
        "On some sampled steps, JSON of the passes of batch normalisation that `norm_values` are of: what its modules "
        "declare, and which channels.",
        after="passes_begun",
    ),
    Column(
        "norm_values",
        "list<float64>",
        "",
        "Of each module the batches that it has counted at the end of the step; then of each pass that count, running "
        "mean and variance of some channels, their sum and sum of squares, and the first three after it.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe",),
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "batch-norm-differs": Code(),
    },
)
