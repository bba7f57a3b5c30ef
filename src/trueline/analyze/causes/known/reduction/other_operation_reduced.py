"""Something other than a sum over ranks is done to gradients.

A broadcast of one rank's gradient, or of what one rank has kept, in place of an all-reduce.

What looks like it
------------------
A group that lacks ranks (`wrong-group`): then replicas differ.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/one-ranks": "always",
    },
    needs=("reduction-mismatch",),
    settles="Print which collective runs on .grad between backward and the update, with its op and its source.",
)
