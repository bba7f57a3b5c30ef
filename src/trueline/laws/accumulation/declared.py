"""Gradients that are added up over passes, and cleared."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "grad-accumulates": Code(explains=("loss-scale-wrong", "*unlike-worker", "*jump"), signal="grad_norm"),
    },
)
