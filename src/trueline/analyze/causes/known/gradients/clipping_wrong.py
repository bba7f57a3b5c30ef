"""Clipping does not multiply all gradients by one factor from their norm.

Elements that a kernel skips or a patched function changes, a norm that is of a part of the parameters, of a shard, or
counted twice.

What looks like it
------------------
Clipping that is given no gradient (`clipped-nothing`) or comes at another moment (`clipped-at-another-time`).

Known cases
-----------
DeepSpeed PR#5150, NeMo-RL PR#3788.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "clip-differs": "mostly",
        "clip-differs/elements|ranks": "mostly",
        "norm-misreported": "often",
        "norm-misreported/own-shard|other": "often",
    },
    needs=("clip-differs", "norm-misreported"),
    settles="Print the norm before and after clipping beside the one that clip_grad_norm_ returns.",
)
