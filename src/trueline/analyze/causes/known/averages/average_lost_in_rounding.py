"""What an average of the weights is to move is less than half of the spacing of its format.

An average in bfloat16 with a decay of 0.999 stays where it is until the model is further off than it is large.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "average-differs": "always",
        "average-differs/lost": "always",
    },
    needs=("average-differs",),
    settles="Keep the average in float32, and update it from the float32 weights.",
)
