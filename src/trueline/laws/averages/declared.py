"""Averages of the weights: EMA, SWA, momentum teachers."""

from trueline.laws.averages.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe",),
    checks={
        "average-differs": Code(),
    },
)
