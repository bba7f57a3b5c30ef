"""FSDP2 reduces over a mesh that does not reach all ranks that train together.

The mesh ends at the node, or one of its dimensions was left out: within each part the reduction is right, and the
parts train apart.

What looks like it
------------------
Several models side by side on purpose.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/later": "always",
        "replica-drift/several": "always",
        "adapter:fsdp2": "always",
    },
    needs=("replica-drift",),
    excludes=("gradient-not-reduced", "reduction-mismatch", "updates-apart", "rank-config-differs"),
    settles="Print mesh.mesh of fully_shard on every rank: together its rows must hold every rank that trains the "
    "model.",
)
