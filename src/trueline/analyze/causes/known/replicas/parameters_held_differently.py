"""Ranks train different parameters.

Frozen, added, dropped, replaced or cast on some ranks, or not at the same step.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rank-config-differs": "always",
        "rank-config-differs/parameters": "always",
        "replica-drift": "often",
    },
    needs=("rank-config-differs",),
    settles="Print the names of parameters with requires_grad on every rank at the step that is named.",
)
