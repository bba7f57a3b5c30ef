"""Gradients that do not come: of a worker, or of an update."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "update-without-gradient": Code(root="update", says=("parameters-without-gradient",)),
        "worker-silent": Code(
            explains=("worker-grad-norm-outlier", "worker-direction-outlier", "worker-scale", "dispersion-high"),
            signal="grad_norm",
            dated=True,
        ),
    },
)
