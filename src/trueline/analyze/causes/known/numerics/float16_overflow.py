"""A value exceeds what float16 can hold.

Beyond 65,504 there is only infinity: activations or attention scores that grow, or a sum over many elements.

What looks like it
------------------
A NaN that is computed in any precision (`operation-undefined`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-nonfinite": "always",
        "worker-nonfinite/loss|gradient": "often",
        "overflow-origin": "mostly",
        "overflow-origin/float16": "always",
        "overflow-origin/made": "mostly",
        "range-saturation": "mostly",
        "precision:float16": "always",
        "trial-remedy-fp32:recovers": "mostly",
    },
    needs=("worker-nonfinite", "overflow-origin"),
    excludes=(
        "overflow-origin/given",
        "overflow-origin/param",
        "overflow-origin/turned",
        "precision:other",
        "replica-drift/one",
    ),
    settles="Compute the call that is named in float32 or bfloat16.",
)
