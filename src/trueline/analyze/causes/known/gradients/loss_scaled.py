"""The loss is multiplied by something, so that its tokens do not weigh 1 together.

A constant weight, a number that is not how many tokens or micro-batches there are (padding counted, a shorter
accumulation divided by the usual number): the learning rate is in effect larger or smaller by as much.

What looks like it
------------------
A loss scale that the optimizer takes out again.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/scaled": "always",
        "structure-differs": "often",
        "first-divergence": "often",
    },
    needs=("loss-scale-wrong",),
    settles="Print what the loss of each micro-batch is multiplied and divided by; the weights of all tokens of a "
    "step should add up to 1.",
)
