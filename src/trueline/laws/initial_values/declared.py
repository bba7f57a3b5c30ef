"""Parameters as training begins with them."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "init-differs": Code(),
    },
)
