"""The two jobs have different seeds, or have drawn different random numbers before they began.

What looks like it
------------------
Random numbers that are drawn by code around the training, and reach nothing that is trained.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rng-differs": "always",
    },
    needs=("rng-differs",),
    settles="Call trueline.seed_all with the same seed in both jobs, before the model is made, and compare again.",
)
