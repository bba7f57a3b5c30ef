"""The shard of a rank holds next to nothing, so that its few samples are read again and again.

The last shard got the rest of a division, a size is written into the code, a file is short, or a filter left one rank
hardly anything.

What looks like it
------------------
A rank that is meant to train on a small data set of its own (list the ranks that should agree in `worker_groups`); a
batch that is held (`batch-again`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-small": "always",
        "shard-small/few": "always",
    },
    needs=("shard-small",),
    settles="Print len(dataset), or the number of files, on every rank.",
)
