"""The loss is divided twice, or by a number that is too large.

The script divides by the accumulation steps and the framework does so again, a shorter accumulation is divided by the
usual number, or the loss is divided by the number of ranks over which the reduction averages: the learning rate is in
effect that many times as small.

What looks like it
------------------
A gradient that is divided again after the reduction (`divided-twice`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/divided-again": "always",
    },
    needs=("loss-scale-wrong",),
    settles="Print what the loss of each micro-batch is divided by, in the script and in what it is handed to; the "
    "weights of all tokens of a step should add up to 1.",
)
