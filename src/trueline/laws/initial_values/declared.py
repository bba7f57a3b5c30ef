"""Parameters as training begins with them."""

from trueline.laws.initial_values.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe.values",),
    checks={
        "begin-alike": Code(),
        "embedding-rows": Code(),
        "frozen-untrained": Code(says=("frozen-without-adapters",)),
        "init-differs": Code(says=("numbered-layers-tied",)),
        "load-missed": Code(),
        "load-undone": Code(),
        "loads-itself": Code(),
        "tie-lost": Code(),
    },
)
