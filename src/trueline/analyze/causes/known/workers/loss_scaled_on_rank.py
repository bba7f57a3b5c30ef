"""One rank's loss is multiplied or divided by another number than the others'.

A loss weight, a number of accumulation steps or tokens, or a division by the world size that this rank alone has.
Loss and gradient are off by one factor in every layer.

What looks like it
------------------
A batch of another size (`token-imbalance` says so).

Known cases
-----------
S1 of the gallery.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-scale": "often",
        "worker-scale/loss-too": "always",
        "loss-scale-wrong": "often",
        "loss-scale-wrong/some-ranks": "always",
        "who:some": "mostly",
    },
    needs=("worker-scale", "loss-scale-wrong"),
    excludes=("worker-scale/loss-scale", "ranks:one"),
    settles="Print what the loss is divided and multiplied by on that rank and on another, at one step.",
)
