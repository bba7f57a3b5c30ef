"""One rank's batch is unlike all before it.

A broken sample, a very long or repetitive text, wrong labels in one file.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-spike": "always",
        "who:some": "always",
        "steps:one": "mostly",
        "grad-spike": "often",
    },
    needs=("loss-spike",),
    settles="Print that rank's batch at this step, decoded.",
)
