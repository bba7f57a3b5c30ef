"""One rank computes another loss: a term more, label smoothing, another reduction.

A condition on the rank or the node, another version of the code, a setting that only one rank was given.

What looks like it
------------------
A loss that is multiplied by a number (`loss-scaled-on-rank`): gradient and loss are a multiple of what they should be.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-loss-outlier": "often",
        "worker-loss-outlier/above|below": "often",
        "worker-grad-norm-outlier": "often",
        "worker-direction-outlier": "often",
        "loss:other": "always",
        "inputs:alike": "always",
        "who:some": "mostly",
    },
    needs=("loss:other",),
    excludes=("loss:alike",),
    settles="Print loss.grad_fn and the settings of the loss on that rank and on another.",
)
