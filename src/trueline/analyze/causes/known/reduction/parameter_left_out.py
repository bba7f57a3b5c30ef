"""A hand-written all-reduce leaves some parameters out.

A filter by name, a list that was made before layers were added, or `if p.grad is not None` on a rank-dependent
branch.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "always",
        "gradient-not-reduced/some": "always",
        "replica-drift": "always",
        "adapter:manual": "always",
    },
    needs=("gradient-not-reduced",),
    excludes=("adapter:ddp",),
    settles="Reduce every parameter that has a gradient, in the order of model.parameters().",
)
