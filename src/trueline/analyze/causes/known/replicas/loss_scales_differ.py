"""Ranks unscale the reduced gradient by different loss scales.

A GradScaler that was resumed on one rank only, or that saw an overflow on one rank alone: the factors are powers of
two apart.

Known cases
-----------
pytorch#136009.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/loss-scale": "always",
        "replica-drift": "always",
    },
    needs=("reduction-mismatch",),
    settles="Print scaler.get_scale() on every rank before the update.",
)
