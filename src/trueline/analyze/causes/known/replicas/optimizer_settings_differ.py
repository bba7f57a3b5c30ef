"""Ranks update with different optimizer settings.

A learning rate, a schedule that is a step ahead, betas, weight decay or a class that one rank alone has.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rank-config-differs": "always",
        "rank-config-differs/optimizer": "always",
        "replica-drift": "mostly",
    },
    needs=("rank-config-differs",),
    settles="Build optimizer and schedule from one configuration on all ranks, with the same number of steps.",
)
