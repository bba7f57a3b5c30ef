"""A row of attention, or a softmax, has nothing to attend to.

All of its scores are -inf, and their softmax is 0/0.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-nonfinite": "always",
        "worker-nonfinite/loss": "mostly",
        "overflow-origin": "always",
        "overflow-origin/turned": "always",
        "values:finite": "always",
    },
    needs=("worker-nonfinite", "overflow-origin"),
    excludes=("replica-drift/one",),
    settles="Print the mask of the row that is named; let padding rows attend to themselves.",
)
