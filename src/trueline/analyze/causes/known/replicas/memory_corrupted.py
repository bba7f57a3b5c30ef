"""A value in one rank's memory changed by itself.

One tensor differs between replicas from one step on, and neither its gradient nor its update did: a flipped bit, a
stray write, a kernel that writes out of bounds.

What looks like it
------------------
A script that writes to a parameter on one rank.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/later": "always",
        "replica-drift/one": "always",
        "reduction:judged": "mostly",
        "overflow-origin": "often",
        "overflow-origin/made|given|param": "often",
        "worker-nonfinite": "often",
        "worker-nonfinite/loss|gradient": "often",
        "minority-rank": "often",
        "trial-vote:device": "mostly",
        "trial-sync:memory": "often",
    },
    needs=("replica-drift",),
    excludes=("gradient-not-reduced", "reduction-mismatch", "updates-apart", "rank-config-differs"),
    settles="Run again from before that step: what a script does comes back at the same step, damage by hardware "
    "does not; `trueline trial vote` names a device that does it again.",
)
