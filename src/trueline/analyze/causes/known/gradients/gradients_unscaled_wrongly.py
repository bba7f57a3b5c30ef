"""Gradients are not divided by the loss scale once: they still have it, or are divided twice.

The optimizer is stepped without its scaler, or gradients are divided by hand and by the scaler.

Known cases
-----------
accelerate#113.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/never-unscaled|unscaled-twice": "always",
    },
    needs=("loss-scale-wrong",),
    settles="Print a gradient before and after scaler.unscale_, and what scaler.step is called with.",
)
