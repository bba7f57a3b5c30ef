"""Clipping does not multiply all gradients by one factor from their norm.

Clipped before unscaling, by a part of the parameters, by the norm of a shard, after the update, or before the last
backward pass; or gradients are multiplied afterwards.

Known cases
-----------
DeepSpeed PR#5150, NeMo-RL PR#3788.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "clip-differs": "mostly",
        "clip-differs/nothing|elements|late|early|multiplied": "mostly",
        "norm-misreported": "often",
    },
    needs=("clip-differs", "norm-misreported"),
    settles="Print the norm before and after clipping beside the one that clip_grad_norm_ returns.",
)
