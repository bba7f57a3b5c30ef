"""Two jobs that are to be the same."""

from trueline.schema.law import Code, Law

LAW = Law(
    findings={
        "config-differs": Code(explains=("optimizer-differs", "*between-runs"), of_jobs=True),
        "package-differs": Code(explains=("*between-runs",), of_jobs=True),
        "env-differs": Code(explains=("*between-runs",), of_jobs=True),
        "dataset-differs": Code(explains=("input-differs", "first-divergence"), of_jobs=True),
        "rng-differs": Code(
            explains=("dataset-differs", "input-differs", "weight-differs", "first-divergence"), of_jobs=True
        ),
    },
)
