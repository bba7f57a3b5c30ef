"""One call computes something else from the same inputs.

Another kernel, library, device or implementation behind the same name, or an approximation such as the tanh form of
GELU.

What looks like it
------------------
An argument that is not visible to the call.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "first-divergence": "always",
        "first-divergence/computation": "always",
        "op-inaccurate": "often",
    },
    needs=("first-divergence",),
    excludes=("first-divergence/arguments", "first-divergence/parameters"),
    settles="Call it by itself in both environments with the inputs recorded at depth tensor, and in float64.",
)
