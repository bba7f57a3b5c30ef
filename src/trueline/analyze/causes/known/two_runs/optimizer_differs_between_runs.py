"""The two runs update with different optimizers or settings.

A learning rate, decay, betas, epsilon or implementation.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "optimizer-differs": "always",
    },
    needs=("optimizer-differs",),
    settles="Build both optimizers from one configuration, and compare their param_groups.",
)
