"""Labels and targets of a loss."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "labels-misplaced": Code(explains=("*unlike-worker",), signal="loss"),
        "loss-misapplied": Code(),
        "padding-trained": Code(),
    },
)
