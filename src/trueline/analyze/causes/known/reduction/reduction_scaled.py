"""The reduction multiplies the mean by a factor.

A communication hook or a predivide factor that does not cancel.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/other-factor": "always",
    },
    needs=("reduction-mismatch",),
    settles="Print what the communication hook multiplies and divides by.",
)
