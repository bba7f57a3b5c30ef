"""A layer is cut off: parts of the model no longer get a gradient.

On all ranks alike: its ReLUs died, an activation saturated, a schedule drops it, a mask became empty, or a value is
detached on the way.

What looks like it
------------------
Parameters that are frozen on purpose by setting their gradient to zero.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "grad-vanishes": "always",
        "who:all": "often",
    },
    needs=("grad-vanishes",),
    settles="Record the step at which the gradient is lost with preset mix, and look at the first call, in the order "
    "of backward, whose gradient is zero.",
)
