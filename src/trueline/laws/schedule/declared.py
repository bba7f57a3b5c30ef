"""The learning rate over a training."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "schedule-differs": Code(),
    },
)
