"""Training and evaluation mode."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "evaluation-draws": Code(),
        "evaluation-mode": Code(),
        "evaluation-state": Code(),
        "frozen-model-drops": Code(),
    },
)
