"""Running statistics of batch norm."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "batch-norm-differs": Code(),
    },
)
