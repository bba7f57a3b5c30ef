"""Averages of the weights: EMA, SWA, momentum teachers."""

from trueline.schema.law import Code, Law

LAW = Law(
    of_updates=True,
    probes=("probe",),
    checks={
        "average-differs": Code(),
    },
)
