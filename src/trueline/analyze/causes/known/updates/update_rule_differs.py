"""The optimizer does not compute the update that it declares.

A kernel that is wrong for this dtype or device, a patched optimizer, a step count that is off by one, or a hook that
changes weights in the update.

Known cases
-----------
Megatron-LM PR#5976.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "update-magnitude": "always",
    },
    needs=("update-magnitude",),
    excludes=("optimizer-state-stale",),
    settles="Run the same optimizer with foreach=False, fused=False: if the finding is gone, it is the kernel.",
)
