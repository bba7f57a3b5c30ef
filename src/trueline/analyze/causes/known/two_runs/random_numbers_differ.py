"""The two runs draw different random numbers.

Other seeds, or a call more or fewer before.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "first-divergence": "always",
        "first-divergence/random": "always",
    },
    needs=("first-divergence",),
    settles="Call trueline.seed_all with the same seed in both runs, and compare again.",
)
