"""Averages of the weights: EMA, SWA, momentum teachers."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "average-differs": Code(),
    },
)
