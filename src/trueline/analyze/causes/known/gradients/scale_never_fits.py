"""No loss scale makes gradients finite: updates are left out, again and again or to the end.

The loss or an activation overflows before it is multiplied, or the scaler is made anew in each step and never learns.

What looks like it
------------------
A scale that starts too high, and halves until gradients are finite: that takes a few updates.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/left-out|collapsed": "always",
    },
    needs=("loss-scale-wrong",),
    settles="Print the loss, and which gradients are not finite, at a step that is left out.",
)
