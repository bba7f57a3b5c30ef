"""Replicas that got the same gradients do not apply the same update.

The optimizer's state differs (a checkpoint, or the optimizer's part of it, is loaded on some ranks only), or an
operation in the update is not deterministic.

What looks like it
------------------
A script that writes weights on some ranks (`weights-replaced-on-rank`): the optimizer's states stay equal.
Reductions that return different results are found as such; but of FSDP2 it is not seen whether its mesh has all
replicas (`wrong-group`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/later|begun-before": "always",
        "replica-drift/several": "always",
        "reduction:judged": "always",
    },
    needs=("replica-drift",),
    excludes=(
        *("gradient-not-reduced", "reduction-mismatch", "updates-apart", "rank-config-differs", "adapter:fsdp2"),
        "replica-drift/states-equal",
        "replica-drift/received-scaled",
    ),
    settles="Print a checksum of the optimizer's state on every rank at the last step at which replicas were equal.",
)
