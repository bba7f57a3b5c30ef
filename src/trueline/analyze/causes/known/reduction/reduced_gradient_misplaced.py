"""The reduced gradient is written back to other places than it was taken from.

A flat copy that is split in the order of other parameters, or by other sizes.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/misplaced": "always",
    },
    needs=("reduction-mismatch",),
    settles="Compare the names in the order in which gradients are joined with those in which the result is split.",
)
