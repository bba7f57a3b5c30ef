"""One rank never uses some parameters that others use.

A condition on the rank, the data or a flag that leaves a branch out there.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-silent": "always",
        "worker-silent/some-parameters": "always",
        "who:some": "mostly",
    },
    settles="Print, on that rank, the names of parameters whose .grad is None after backward.",
)
