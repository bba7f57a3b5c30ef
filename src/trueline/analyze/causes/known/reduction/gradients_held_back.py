"""FSDP2 held gradients back when the optimizer updated.

set_requires_gradient_sync(False) was still in force: the gradients go into a later update.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "always",
        "gradient-not-reduced/held-back": "always",
    },
    needs=("gradient-not-reduced",),
    settles="Call set_requires_gradient_sync(True) before the last micro-batch of each step.",
)
