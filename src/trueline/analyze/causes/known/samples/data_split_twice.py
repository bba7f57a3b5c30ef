"""Data is split between ranks twice, so that a part of it is never read.

A data set that is already the rank's own part is given a DistributedSampler, or a batch sampler is split again: each
rank reads 1/N of its 1/N.

What looks like it
------------------
An epoch that is cut short on purpose (declare its size in the plan).

Known cases
-----------
accelerate#4199.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "always",
        "shard-overlap/left-out": "always",
    },
    excludes=("shard-overlap/same-part",),
    settles="Print len(dataset) and len(sampler) on every rank: the samplers' lengths should add up to the whole "
    "data, once.",
)
