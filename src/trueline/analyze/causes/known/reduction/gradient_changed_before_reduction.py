"""One rank's gradient is changed between backward and the reduction.

It is clipped by a norm of its own, zeroed, scaled or damaged before it is added up, and the other ranks' are not: all
ranks then apply one wrong mean, and no replica drifts.

What looks like it
------------------
A collective that returns a wrong result (`collective-corrupted`): then what goes in is right.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/lost-before|changed-before|scaled-before": "always",
        "who:some": "always",
        "clip-differs": "often",
        "clip-differs/ranks": "often",
    },
    needs=("reduction-mismatch",),
    excludes=("ranks:one", "adapter:single", "reduction-mismatch/after-the-mean", "reduction-mismatch/extra-pass"),
    settles="Look at what this rank alone does after backward and before the all-reduce: clip and unscale after it, on "
    "all ranks alike. If nothing does, run again with every = 1: suspect its memory or device.",
)
