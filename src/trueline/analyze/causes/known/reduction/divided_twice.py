"""The averaged gradient is divided by the number of ranks once more.

DDP already divides: a division in a hook, by hand after backward, or of the loss, makes the update N times smaller.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/divided-again": "always",
    },
    needs=("reduction-mismatch",),
    settles="Remove one of the divisions by the world size; the factor is exactly 1/N.",
)
