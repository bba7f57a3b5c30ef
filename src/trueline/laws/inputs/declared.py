"""Inputs that a model is fed with."""

from trueline.laws.inputs.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "input-constant": Code(explains=("worker-silent", "*unlike-worker")),
    },
)
