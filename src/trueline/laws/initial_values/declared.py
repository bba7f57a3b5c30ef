"""Parameters as training begins with them."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "init-differs": Code(),
    },
)
