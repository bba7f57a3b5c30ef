"""Gradients are computed, and nothing updates the weights with them.

`optimizer.step()` was forgotten, stands behind a condition that is never true, or the job ends before the first
accumulated update is due.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "no-update": "always",
    },
    needs=("no-update",),
    settles="Print the norm of a parameter before and after the place where the update should be.",
)
