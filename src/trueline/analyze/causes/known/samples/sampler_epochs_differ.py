"""Ranks shuffle by different orders though their samplers declare one seed.

A rank that never calls sampler.set_epoch, or calls it with another number, draws its part from the permutation of
another epoch. Seeds that are drawn anew on each rank show the same.

What looks like it
------------------
Samplers with different seeds (`sampler-seeds-differ`). Of different orders, ranks do not read the same samples in the
same steps.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shard-overlap": "always",
        "shard-overlap/read-twice": "always",
        "sampler:split": "always",
    },
    excludes=("duplicate-data", "split:drawn"),
    settles="Print sampler.epoch and sampler.seed on every rank at the first step of the second epoch.",
)
