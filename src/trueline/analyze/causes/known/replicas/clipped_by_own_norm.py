"""Each rank clips by the norm of its own gradient instead of that of the reduced one.

The norm is taken before the reduction, or over the rank's own shard; replicas drift apart by the first, shards do not.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/clipped-by-own-norm": "always",
        "replica-drift": "often",
        "clip-differs": "often",
        "clip-differs/ranks": "mostly",
    },
    needs=("reduction-mismatch",),
    excludes=("adapter:single",),
    settles="Compute the norm after the reduction (under FSDP with the model's own clip_grad_norm_ or "
    "torch.nn.utils on DTensors).",
)
