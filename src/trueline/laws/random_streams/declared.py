"""Random streams of ranks and loader workers."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "rng-streams": Code(),
    },
)
