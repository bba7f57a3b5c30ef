"""The forward pass goes round the wrapper, so that gradients are not reduced.

DDP reduces what its own forward prepared: calling model.module, or a reference kept from before wrapping, trains
every rank by itself.

What looks like it
------------------
Every micro-batch under no_sync (`no-sync-at-update`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "always",
        "gradient-not-reduced/all": "always",
        "replica-drift": "always",
        "replica-drift/later": "mostly",
        "adapter:ddp": "always",
        "wrapper:bypassed": "always",
    },
    needs=("gradient-not-reduced",),
    settles="Print type(model) where the loss is computed: it must be the wrapper.",
)
