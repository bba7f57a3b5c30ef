"""Inputs that a model is fed with."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe",),
    checks={
        "input-constant": Code(explains=("worker-silent", "*unlike-worker")),
    },
)
