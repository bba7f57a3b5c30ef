"""Every rank reads the same data: nothing splits it between ranks.

The effective batch is that of one rank, whatever their number, and an epoch shows a sample once a rank. It happens
where a DataLoader has no DistributedSampler, or one with num_replicas=1.

What looks like it
------------------
A sampler that is given the wrong rank (`sampler-rank-wrong`); a stream (`stream-not-split`); data that really holds
copies.

Known cases
-----------
icefall#1616, datasets#5360, profam#312.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "duplicate-data": "always",
        "duplicate-data/same-samples": "often",
        "sampler:whole": "always",
        "who:all": "mostly",
        "shard-overlap": "often",
    },
    excludes=("sampler:stream", "duplicate-data/positions-kept", "duplicate-data/some-ranks"),
    settles="Print type(loader.sampler) and its num_replicas on every rank; it should be a DistributedSampler "
    "over the world size.",
)
