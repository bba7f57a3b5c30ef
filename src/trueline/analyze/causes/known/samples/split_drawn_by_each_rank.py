"""Each rank draws its own split of the data, so that what ranks train on overlaps.

random_split or a permutation without a generator of its own, under a seed that depends on the rank: the training part
of one rank holds samples that others keep for validation, and samples that others train on.

What looks like it
------------------
Slices that begin too close to each other (`slices-overlap`): those are in a row, not drawn.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "mostly",
        "shard-overlap/read-twice": "mostly",
        "duplicate-data": "often",
        "duplicate-data/few": "often",
        "rows:own": "always",
        "split:drawn": "always",
    },
    needs=("split:drawn",),
    excludes=("sampler:stream", "rows:shared"),
    settles="Print sum(subset.indices) on every rank: it must be one number.",
)
