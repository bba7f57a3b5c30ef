"""Influences that a loss must not have: other samples, later tokens, padding."""

from trueline.schema.law import Code, Law

LAW = Law(
    probes=("probe.influence",),
    checks={
        "batch-leak": Code(),
        "influence-leak": Code(),
        "order-ignored": Code(),
    },
)
