"""Running statistics of batch norm."""

from trueline.schema.law import Code, Law

LAW = Law(
    of_updates=True,
    probes=("probe",),
    checks={
        "batch-norm-differs": Code(),
    },
)
