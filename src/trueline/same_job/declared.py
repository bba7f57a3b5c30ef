"""Two jobs that are to be the same."""

from trueline.schema.law import Code, Law

LAW = Law(
    command="trueline diff",
    findings={
        "config-differs": Code(
            explains=("optimizer-differs", "*between-runs"),
            of_jobs=True,
            manual="A setting is another than in the reference, in the words that all frameworks share.",
        ),
        "env-differs": Code(
            explains=("*between-runs",),
            of_jobs=True,
            manual="Variables of the environment, switches of torch, devices or the build of torch differ.",
        ),
        "package-differs": Code(
            explains=("*between-runs",), of_jobs=True, manual="Versions of packages, or commits of sources, differ."
        ),
        "dataset-differs": Code(
            explains=("input-differs", "first-divergence"),
            of_jobs=True,
            seen_in_values=True,
            manual="The data set, its order, tokenizer, template or the first batches differ.",
        ),
        "rng-differs": Code(
            explains=("dataset-differs", "input-differs", "weight-differs", "first-divergence"),
            of_jobs=True,
            manual="Seeds, or the states of random streams before the first update, differ.",
        ),
    },
)
