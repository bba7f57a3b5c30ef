"""Ranks that hold one model together clip or scale the gradients of what they hold in copies by different factors.

One of them clips by another norm, or only some of its parameters. Their optimizers then receive one gradient times a
factor, and copies part.

What looks like it
------------------
Copies whose gradients are not summed over these ranks: those are in no factor.

Known cases
-----------
DeepSpeed#1801 (BLOOM): layer norms were clipped on the first tensor-parallel rank only.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/received-scaled": "always",
    },
    needs=("replica-drift",),
    settles="Print on each of these ranks the norm by which it clips, and the names of the parameters that it clips.",
)
