"""A step was too large: loss or gradients jump.

On all ranks at once. A learning rate above what the curvature allows, a short warm-up, betas that forget too slowly, or
one unusual global batch.

What looks like it
------------------
One rank that jumps alone.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "grad-spike": "mostly",
        "grad-spike/within-start": "often",
        "loss-spike": "often",
        "loss-spike/within-start": "often",
        "who:all": "often",
        "trial-remedy-clip:recovers": "mostly",
    },
    needs=("grad-spike", "loss-spike"),
    excludes=("worker-nonfinite",),
    settles="Train again from before the jump with half the learning rate, and once with that batch left out.",
)
