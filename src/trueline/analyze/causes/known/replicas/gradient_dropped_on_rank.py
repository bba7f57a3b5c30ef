"""One rank drops the reduced gradient before the update.

zero_grad at the wrong place, a check for overflow that only one rank makes, or a condition on the rank.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/dropped": "always",
        "replica-drift": "always",
    },
    needs=("reduction-mismatch",),
    settles="Decide on skipping a step by an all-reduced flag, so that all ranks skip together.",
)
