"""A stream is shuffled differently on each rank before it is split by stride.

Strides of different orders overlap: shuffle by one seed, then split, or split first.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "always",
        "shard-overlap/read-twice": "always",
        "sampler:stream": "always",
    },
    excludes=("sampler:split", "sampler:whole"),
    settles="Print the seed that the stream is shuffled with on every rank, and whether it is split before or after.",
)
