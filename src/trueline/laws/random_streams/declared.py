"""Random streams of ranks and loader workers."""

from trueline.laws.random_streams.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    checks={
        "rng-streams": Code(),
    },
)
