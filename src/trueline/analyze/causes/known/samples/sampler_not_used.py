"""Ranks train on batches that do not come from the samplers which split the data.

Every sampler declares a part of its own, and the batches are the same all the same: one rank's batch is broadcast to
the others, as code for tensor parallelism does, or another loader than the split one feeds the model.

What looks like it
------------------
Samplers that take the same part (`sampler-rank-wrong`); no splitting sampler at all (`data-not-split`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "duplicate-data": "always",
        "duplicate-data/same-samples": "often",
        "sampler:split": "always",
        "parts:own": "always",
        "shard-overlap": "often",
    },
    needs=("duplicate-data",),
    excludes=("sampler:whole", "sampler:stream", "shard-overlap/same-part", "duplicate-data/positions-kept"),
    settles="Compare the batch that the loader yields with the one that the model is called on, on two ranks.",
)
