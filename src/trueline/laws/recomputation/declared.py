"""Activations that are computed again."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "recompute-differs": Code(),
    },
)
