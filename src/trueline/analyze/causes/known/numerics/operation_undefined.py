"""A call computes NaN or infinity from finite inputs, whatever the precision.

log(0), 0/0, the square root of a negative number, a division by an empty count.

What looks like it
------------------
An overflow of float16.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-nonfinite": "always",
        "worker-nonfinite/loss": "mostly",
        "overflow-origin": "always",
        "overflow-origin/made": "always",
        "precision:other": "mostly",
        "values:finite": "always",
        "trial-remedy-fp32:no effect": "mostly",
    },
    needs=("worker-nonfinite", "overflow-origin"),
    excludes=(
        "values:not-finite",
        "overflow-origin/given",
        "overflow-origin/param",
        "overflow-origin/turned",
        "replica-drift/one",
        "replica-drift/buffers",
        "range-saturation",
    ),
    settles="Print the extremes of the inputs of the call that is named; clamp them, or add an epsilon.",
)
