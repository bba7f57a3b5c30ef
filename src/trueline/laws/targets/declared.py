"""Labels and targets of a loss."""

from trueline.laws.targets.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "labels-misplaced": Code(explains=("*unlike-worker",), signal="loss"),
        "loss-misapplied": Code(),
        "padding-trained": Code(),
    },
)
