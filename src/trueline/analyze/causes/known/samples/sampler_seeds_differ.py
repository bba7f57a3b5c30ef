"""Ranks shuffle with different seeds, so that their parts overlap.

Each rank takes its part of another permutation: some samples are read by two ranks in an epoch, others by none.

What looks like it
------------------
Ranks that disagree on the epoch (`sampler-epochs-differ`).

Known cases
-----------
LongLive#71; S1-2 and S1-3 of arXiv 2602.14462.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "always",
        "shard-overlap/seeds": "always",
    },
    settles="Print sampler.seed on every rank; it must be one number.",
)
