"""A worker whose gradient does not come."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "worker-silent": Code(
            explains=("worker-grad-norm-outlier", "worker-direction-outlier", "worker-scale", "dispersion-high"),
            signal="grad_norm",
            dated=True,
        ),
    },
)
