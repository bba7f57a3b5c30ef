"""What a token weighs in a loss: counts, division, scale."""

from trueline.laws.token_weights.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "loss-scale-wrong": Code(
            explains=("worker-scale", "worker-grad-norm-outlier", "worker-loss-outlier", "dispersion-high", "*jump"),
            signal="grad_norm",
            says=("passes-not-used", "samples-never-read"),  # micro-batches whose gradients are thrown away
        ),
        "token-imbalance": Code(explains=("*unlike-worker",), signal="tokens", same_fault=("token-weights-differ",)),
        "token-weights-differ": Code(),
    },
)
