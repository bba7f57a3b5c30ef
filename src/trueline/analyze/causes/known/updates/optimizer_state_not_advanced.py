"""Moments or step counts of the optimizer do not advance as they should.

State that was loaded wrongly, counted twice, or that a kernel leaves as it was.

Known cases
-----------
pytorch#115607.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "optimizer-state-stale": "always",
        "update-magnitude": "often",
    },
    needs=("optimizer-state-stale",),
    settles="Run the same optimizer with foreach=False, fused=False, and look at state['step'] after each update.",
)
