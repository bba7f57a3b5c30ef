"""A batch is unlike all before it.

Of several ranks, one has it: a broken sample, a very long or repetitive text, wrong labels in one file.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-spike": "always",
        "loss-spike/within-start": "often",
        "who:some": "always",
        "steps:one": "mostly",
        "grad-spike": "often",
        "grad-spike/within-start": "often",
    },
    needs=("loss-spike",),
    settles="Print the batch at this step, decoded.",
)
