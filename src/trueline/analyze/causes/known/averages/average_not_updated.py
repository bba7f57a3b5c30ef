"""An average of the weights, or a part of it, is not updated.

Its update is not called, goes through fewer parameters than the model has, or is skipped.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "average-differs": "always",
        "average-differs/still|left-out": "always",
    },
    needs=("average-differs",),
    settles="Print how often, and with how many parameters, the update of the average is called.",
)
