"""An average of the weights (EMA, SWA, a momentum teacher) follows other weights than those that are trained.

It is given a stale or uninitialised copy, the optimizer trains it as well, it is no copy but the model itself, or ranks
began it differently.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "average-differs": "always",
        "average-differs/rule|trained|same|ranks": "always",
    },
    needs=("average-differs",),
    settles="Before and after its update print one element of the average, and the same one of the model.",
)
