"""Gradients that are added up over passes, and cleared."""

from trueline.laws.accumulation.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "grad-accumulates": Code(explains=("loss-scale-wrong", "*unlike-worker", "*jump"), signal="grad_norm"),
    },
)
