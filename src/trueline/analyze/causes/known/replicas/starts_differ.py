"""Ranks start from different weights.

Nothing broadcasts them: a hand-written loop without it, init_sync=False, a checkpoint that only some ranks loaded, or
replicas of a hybrid mesh seeded apart.

What looks like it
------------------
A difference that comes later.

Known cases
-----------
torchtitan#166.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/from-the-start|begun-before": "always",
    },
    needs=("replica-drift",),
    excludes=("gradient-not-reduced", "rank-config-differs/parameters", "replica-drift/counts-apart"),
    settles="Print a checksum of the weights on every rank before the first step.",
)
