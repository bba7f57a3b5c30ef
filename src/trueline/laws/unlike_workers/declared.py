"""A worker that is unlike the others: its loss, its gradient, its direction."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "dispersion-high": Code(group="unlike-worker", root="gradient-norm", signal="loss"),
        "dispersion-low": Code(root="sampling", signal="loss"),
        "worker-direction-outlier": Code(
            explains=("dispersion-high",), group="unlike-worker", signal="cosine_others", judge_workers=True
        ),
        "worker-grad-norm-outlier": Code(
            explains=("worker-direction-outlier", "dispersion-high", "grad-spike"),
            group="unlike-worker",
            root="gradient-norm",
            signal="grad_norm",
            judge_workers=True,
        ),
        "worker-loss-outlier": Code(
            explains=("worker-grad-norm-outlier", "worker-direction-outlier", "dispersion-high", "*jump"),
            group="unlike-worker",
            root="loss",
            signal="loss",
            judge_workers=True,
            right_alone="below",
        ),
        "worker-scale": Code(
            explains=("worker-grad-norm-outlier", "worker-loss-outlier", "dispersion-high", "*jump"),
            group="unlike-worker",
            root="gradient-norm",
            signal="grad_norm",
            judge_workers=True,
        ),
    },
)
