"""The backward pass of a call makes NaN or infinity from a finite gradient.

The derivative is infinite where the value is not: sqrt(0), norm(0), pow with a zero base, where() over a branch that
is not taken.

What looks like it
------------------
Gradients that grow with depth.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-nonfinite": "always",
        "worker-nonfinite/gradient-alone": "always",
        "overflow-origin": "always",
        "overflow-origin/backward": "always",
    },
    needs=("worker-nonfinite", "overflow-origin"),
    excludes=("grad-explosion", "replica-drift/one", "values:not-finite"),
    settles="Print the extremes of the inputs of the call that is named; the derivative at 0 is the usual culprit.",
)
