"""Running statistics of batch normalisation are each rank's own.

broadcast_buffers=False, FSDP2 (which has no such option), or a hand-written loop: evaluation and checkpoints depend
on the rank.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/statistics": "always",
    },
    needs=("replica-drift",),
    excludes=("replica-drift/later", "worker-nonfinite"),
    settles="Use SyncBatchNorm, or broadcast buffers before evaluating and saving.",
)
