"""Activations that are computed again."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "recompute-differs": Code(),
    },
)
