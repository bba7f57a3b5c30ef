"""The update comes while gradients are still withheld from reduction.

With gradient accumulation the last micro-batch of every step must run outside of no_sync, forward and backward. An
epoch that ends in the middle of a step, a branch that only the other micro-batches use, or a flag the wrong way round
break this.

What looks like it
------------------
A forward pass past the wrapper (`wrapper-bypassed`).

Known cases
-----------
pytorch#69031.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "always",
        "gradient-not-reduced/all|some": "often",
        "replica-drift": "mostly",
        "sync:off": "always",
        "wrapper:called": "always",
        "adapter:ddp": "always",
    },
    needs=("gradient-not-reduced",),
    settles="Print at each micro-batch whether no_sync is on and whether an update follows.",
)
