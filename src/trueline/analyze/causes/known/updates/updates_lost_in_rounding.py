"""Updates are too small for the precision of the weights.

In bfloat16 a weight has 8 bits: an update below 1/256 of it changes nothing, and second moments that should decay
stay.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "update-lost": "always",
    },
    needs=("update-lost",),
    settles="Keep fp32 master weights (autocast instead of casting the model), or round stochastically.",
)
