"""Gradients are summed over ranks and not divided by their number.

A hook or a hand-written all-reduce with SUM: the learning rate is in effect N times as large.

What looks like it
------------------
Sums on purpose, with the loss divided by all samples.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/not-divided": "always",
    },
    needs=("reduction-mismatch",),
    settles="Divide by the world size after dist.all_reduce, or use ReduceOp.AVG.",
)
