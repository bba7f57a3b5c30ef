"""One rank's backward pass reaches no parameter.

The loss is detached, the model is in no_grad or frozen there, or a branch on the rank leaves backward out.

What looks like it
------------------
Labels that are all masked (`labels-all-masked`): then the loss is zero too.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-silent": "always",
        "worker-silent/loss-usual": "always",
        "who:some": "always",
    },
    excludes=("worker-nonfinite",),
    settles="Print loss.requires_grad and the number of parameters with a gradient on that rank after backward.",
)
