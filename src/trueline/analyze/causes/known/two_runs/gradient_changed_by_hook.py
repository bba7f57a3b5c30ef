"""A gradient is changed between two calls.

A hook on a tensor or module, clipping within the backward pass, or a gradient that was not recorded.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "first-divergence": "always",
        "first-divergence/received": "always",
    },
    needs=("first-divergence",),
    settles="List hooks on the tensor and module that are named.",
)
