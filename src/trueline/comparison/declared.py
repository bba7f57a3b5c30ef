"""A Run and its reference."""

from trueline.schema.law import Code, Law

LAW = Law(
    findings={
        "structure-differs": Code(
            explains=("site-missing", "dtype-differs", "weight-differs", "first-divergence"),
            group="between-runs",
            root="divergence",
        ),
        "optimizer-differs": Code(explains=("weight-differs",)),
        "weight-differs": Code(explains=("first-divergence",), group="between-runs", root="divergence"),
        "corruption-pattern": Code(explains=("weight-differs", "optimizer-differs", "first-divergence")),
        "input-differs": Code(explains=("first-divergence",)),
        "dtype-differs": Code(explains=("first-divergence",), group="between-runs", root="divergence"),
        "site-missing": Code(group="between-runs", root="divergence"),
        "first-divergence": Code(group="between-runs", root="divergence"),
    },
)
