"""Running statistics of batch norm."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "batch-norm-differs": Code(),
    },
)
