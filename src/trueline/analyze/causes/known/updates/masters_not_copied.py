"""Weights that the forward pass uses are not those that the optimizer updated.

The low-precision copy is not written back from its fp32 master, or from an old one.

Known cases
-----------
Megatron-LM PR#2789, #663, #950.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "master-working-mismatch": "always",
    },
    needs=("master-working-mismatch",),
    settles="Compare a parameter with the rounding of its master copy right after the update.",
)
