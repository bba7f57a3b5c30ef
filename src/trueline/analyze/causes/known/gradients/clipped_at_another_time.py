"""Gradients are clipped at another moment than between the last backward pass and the update.

After the update that they were for, before a backward pass that adds to them, or before code that multiplies them
again: what the update uses is not clipped.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "clip-differs": "always",
        "clip-differs/late|early|multiplied": "always",
    },
    needs=("clip-differs",),
    settles="Print the norm of the gradients just before optimizer.step(): it should be max_norm at most.",
)
