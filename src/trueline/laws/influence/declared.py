"""What must not influence a loss: other samples, later tokens, padding."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "batch-leak": Code(),
        "influence-leak": Code(),
        "order-ignored": Code(),
    },
)
