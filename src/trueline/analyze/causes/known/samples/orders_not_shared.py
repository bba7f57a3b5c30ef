"""Every rank shuffles the whole data by itself, so that ranks read the same samples at different times.

Nothing splits the data, and each rank's random order is its own: as many epochs pass at once as there are ranks.

What looks like it
------------------
Equal orders, which give equal batches (`data-not-split`); parts that overlap (`slices-overlap`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "always",
        "shard-overlap/read-twice": "always",
        "duplicate-data": "often",
        "duplicate-data/few": "often",
        "sampler:whole": "always",
        "order:random": "always",
        "who:all": "mostly",
    },
    excludes=("sampler:split", "order:file", "rows:own", "split:drawn"),
    settles="Print type(loader.sampler) on every rank; pass a DistributedSampler over the world size.",
)
