"""The loss is given what it is not made for.

softmax or sigmoid in front of a loss that applies it itself, a missing logarithm, predictions [B, 1] against targets
[B], binary targets that are not 0 and 1.

What looks like it
------------------
A learning rate that is too low, data that are hard: the loss falls, and stays high.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-misapplied": "always",
    },
    needs=("loss-misapplied",),
    settles="Mend what the finding names, and train as many steps again: the loss must fall further.",
)
