"""Gradients clipped by their norm."""

from trueline.laws.clipping.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "clip-differs": Code(
            explains=(
                "reduction-mismatch",
                "update-magnitude",
                "update-lost",
                "replica-drift",
                "*unlike-worker",
                "*jump",
            ),
            root="gradient-norm",
            signal="grads_factor",
        ),
        "norm-misreported": Code(
            explains=(
                "clip-differs",
                "reduction-mismatch",
                "update-magnitude",
                "update-lost",
                "replica-drift",
                "*unlike-worker",
                "*jump",
            )
        ),
    },
)
