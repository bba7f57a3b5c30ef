"""Samplers of several ranks take the same part: they are given the same rank.

A DistributedSampler is there and splits the data, but ranks share a part: built before init_process_group, or from
the number of the node or the local rank instead of the global rank.

What looks like it
------------------
No splitting sampler at all (`data-not-split`); batches that do not come from the samplers, which then declare ranks of
their own.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "duplicate-data": "mostly",
        "shard-overlap": "often",
        "shard-overlap/same-part": "always",
        "dispersion-low": "often",
        "sampler:split": "always",
    },
    excludes=("sampler:whole", "sampler:stream", "parts:own", "duplicate-data/positions-kept"),
    settles="Print sampler.rank and sampler.num_replicas on every rank: ranks 0 to N-1 of N, each once.",
)
