"""Running statistics of batch norm."""

from trueline.laws.batch_norm.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe",),
    checks={
        "batch-norm-differs": Code(),
    },
)
