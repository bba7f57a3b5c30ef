"""The learning rate over a training."""

from trueline.schema.law import Code, Law

LAW = Law(
    of_updates=True,
    probes=("probe",),
    checks={
        "schedule-differs": Code(),
    },
)
