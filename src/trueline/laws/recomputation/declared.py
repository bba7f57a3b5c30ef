"""Activations that are computed again."""

from trueline.laws.recomputation.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "recompute-differs": Code(),
    },
)
