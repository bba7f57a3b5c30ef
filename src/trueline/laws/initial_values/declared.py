"""Parameters as training begins with them."""

from trueline.schema.law import Code, Law

LAW = Law(
    of_updates=True,
    probes=("probe",),
    checks={
        "init-differs": Code(),
    },
)
