"""Ranks hold weights or compute in different precision.

A cast, autocast or dtype argument on some ranks only.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rank-config-differs": "always",
        "rank-config-differs/precision": "always",
        "replica-drift": "often",
    },
    needs=("rank-config-differs",),
    settles="Print the dtype of each parameter and torch.is_autocast_enabled() on every rank.",
)
