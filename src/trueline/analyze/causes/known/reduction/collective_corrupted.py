"""A collective returned a wrong result on one rank.

Zeros, stale values, a lost tail or foreign numbers in one bucket, at single steps: a link, a device, a race on the
communication stream, or a hook that treats this rank differently.

What looks like it
------------------
A process group that lacks ranks (`wrong-group`): then every rank is affected, at every step.

Known cases
-----------
pytorch#84803.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/not-the-mean|other": "always",
        "who:some": "always",
        "steps:one": "mostly",
        "replica-drift": "mostly",
        "trial-vote:device": "mostly",
    },
    needs=("reduction-mismatch",),
    excludes=("reduction-mismatch/after-the-mean", "reduction-mismatch/extra-pass"),
    settles="Run again with every = 1: if it comes at other steps on the same rank, suspect its device or link; "
    "if at the same step, the code.",
)
