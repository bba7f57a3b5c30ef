"""All labels of a batch are masked.

The loss is zero, or 0/0 = NaN, and so is the gradient, while an average over ranks is still divided by all of them.
Truncation that cuts off every answer does this.

What looks like it
------------------
A rank that leaves out its backward pass (`loss-detached-on-rank`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-silent": "mostly",
        "worker-nonfinite": "often",
        "worker-silent/loss-zero|loss-not-finite": "always",
        "who:some": "always",
        "worker-nonfinite/loss": "mostly",
    },
    needs=("worker-silent", "worker-nonfinite"),
    excludes=("overflow-origin",),
    settles="Count the labels that are not -100 in the batch at this step.",
)
