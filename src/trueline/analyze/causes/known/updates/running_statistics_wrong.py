"""The running statistics of batch normalisation follow another rule.

A kernel or a synchronised form computes the mean or variance of the batch otherwise, or code writes into them.

What looks like it
------------------
A batch that was not finite and that they keep, which `batch-norm-differs` tells apart.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "batch-norm-differs": "always",
        "batch-norm-differs/rule|evaluation": "always",
    },
    needs=("batch-norm-differs",),
    settles="Give one batch to a copy of the layer in float64 on the CPU, and compare running_mean and running_var.",
)
