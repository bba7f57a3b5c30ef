"""Influences that a loss must not have: other samples, later tokens, padding."""

from trueline.laws.influence.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe.influence",),
    checks={
        "batch-leak": Code(),
        "influence-leak": Code(),
        "order-ignored": Code(),
    },
)
