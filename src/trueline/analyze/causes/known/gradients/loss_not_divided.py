"""The loss is not divided by the number of micro-batches.

On all ranks alike, the weights of all tokens add up to that number: the learning rate is in effect that many times as
large.

What looks like it
------------------
A loss that is multiplied by something else (`loss-scaled`), or divided twice (`loss-divided-twice`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/sum": "always",
        "structure-differs": "often",
        "first-divergence": "often",
    },
    needs=("loss-scale-wrong",),
    settles="Print what the loss of each micro-batch is divided by; the weights of all tokens of a step should "
    "add up to 1.",
)
