"""Each rank cuts a part of its own from the data, and the parts overlap.

Slices that begin too close to each other, files that are listed for two ranks, a stride that is not the number of
ranks: some samples come once a rank, others not at all.

What looks like it
------------------
The whole data on every rank, each in a random order of its own (`orders-not-shared`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "always",
        "shard-overlap/read-twice": "always",
        "duplicate-data": "often",
        "duplicate-data/few": "often",
        "sampler:whole": "always",
        "order:file": "always",
        "rows:own": "always",
        "who:all": "mostly",
    },
    excludes=("sampler:split", "sampler:stream", "rows:shared", "split:drawn"),
    settles="Print the first and the last index, or the files, of each rank's part.",
)
