"""Weights that ranks hold alike."""

from trueline.laws.replicas.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "rank-config-differs": Code(
            explains=("gradient-not-reduced", "reduction-mismatch", "replica-drift", "worker-silent", "*unlike-worker"),
            dated=True,
            names_both=True,
        ),
        "replica-drift": Code(explains=("*unlike-worker",), dated=True, names_both=True),
        "shards-equal": Code(),
        "updates-apart": Code(
            explains=(
                "rank-config-differs",
                "gradient-not-reduced",
                "reduction-mismatch",
                "replica-drift",
                "*unlike-worker",
            ),
            dated=True,
        ),
    },
)
