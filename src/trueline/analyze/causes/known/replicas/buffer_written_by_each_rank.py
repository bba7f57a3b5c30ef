"""A buffer that code writes is each rank's own, as it is computed from this rank's batch alone.

The bias of a router that is balanced by counts of tokens, a codebook, a running scale or a queue: what the buffer is
made of was not reduced over ranks, so that each replica is another model.

What looks like it
------------------
Running statistics of batch normalisation (`buffers-not-synchronised`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/by-code": "always",
    },
    needs=("replica-drift",),
    excludes=(
        "replica-drift/later",
        "worker-nonfinite",
    ),
    settles="Print the buffer, and what it is computed from, on two ranks after one step: all-reduce the latter "
    "before the buffer is written.",
)
