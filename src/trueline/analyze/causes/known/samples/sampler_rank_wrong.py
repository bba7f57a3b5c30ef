"""Samplers or readers of several ranks take the same part: they are given the same rank.

Something splits the data, but ranks share a part: a DistributedSampler built before init_process_group, or a reader
that is given the number of the node, the local rank or a rank that was divided instead of the global rank.

What looks like it
------------------
No splitting sampler at all (`data-not-split`); batches that do not come from the samplers, which then declare ranks of
their own.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "duplicate-data": "mostly",
        "duplicate-data/some-ranks": "mostly",
        "duplicate-data/same-samples": "often",
        "shard-overlap": "often",
        "shard-overlap/same-part": "always",
        "dispersion-low": "often",
        "sampler:split": "mostly",
    },
    excludes=("parts:own", "duplicate-data/positions-kept"),
    settles="Print which part each rank's sampler or reader is given (sampler.rank of sampler.num_replicas): 0 to N-1 "
    "of N, each once.",
)
