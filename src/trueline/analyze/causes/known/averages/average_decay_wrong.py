"""An average of the weights has another decay than it declares.

The decay and its complement are swapped, or it is updated at each micro-batch, or seldom.

What looks like it
------------------
A warm-up of the decay, which `average-differs` tells as an information.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "average-differs": "always",
        "average-differs/swapped|often|decay": "always",
    },
    needs=("average-differs",),
    settles="Print the decay and the number of the step where the average is updated.",
)
