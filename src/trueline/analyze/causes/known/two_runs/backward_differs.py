"""The backward pass of one call computes something else.

A custom autograd function, a fused kernel, or a hook; its forward pass agrees.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "first-divergence": "always",
        "first-divergence/backward": "always",
    },
    needs=("first-divergence",),
    settles="Check the call with torch.autograd.gradcheck in float64.",
)
