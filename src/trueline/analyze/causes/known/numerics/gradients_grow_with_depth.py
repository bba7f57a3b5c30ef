"""Gradients grow from layer to layer until they overflow.

Each layer of the backward pass multiplies them: a mask that does not fit the batch, a missing normalisation, an
initialisation that is too large.

What looks like it
------------------
One call that overflows (`float16-overflow`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "grad-explosion": "always",
        "overflow-origin": "mostly",
        "overflow-origin/backward": "mostly",
        "worker-nonfinite": "mostly",
        "worker-nonfinite/gradient-alone": "mostly",
    },
    needs=("grad-explosion",),
    settles="Record a step before the overflow and compare the gradients' norms layer by layer; check masks and "
    "initialisation of the layers where they grow.",
)
