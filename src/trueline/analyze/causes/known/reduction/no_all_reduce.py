"""Gradients are never averaged between ranks.

A loop that reduces by hand and does not, or does so before backward has finished.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "always",
        "gradient-not-reduced/all": "always",
        "replica-drift": "always",
        "adapter:manual": "always",
    },
    needs=("gradient-not-reduced",),
    excludes=("adapter:ddp",),
    settles="Call dist.all_reduce on every .grad after the last backward pass, divide by the world size, and look "
    "whether replicas stay equal.",
)
