"""What the loss is computed from."""

from trueline.laws.leaves.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "stale-weights": Code(),
        "weights-left-out": Code(explains=("replica-drift",)),
    },
)
