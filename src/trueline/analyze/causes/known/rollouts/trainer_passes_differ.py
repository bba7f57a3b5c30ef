"""The trainer itself gives the same tokens other log-probabilities from pass to pass.

Dropout that is on, a batch-dependent kernel under other micro-batches, padding that is seen.

What looks like it
------------------
Weights that change between the two passes: an update in between.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "logprob-gap": "always",
        "logprob-gap/passes-differ": "always",
    },
    needs=("logprob-gap",),
    excludes=("weights-not-synced/stale|swapped|size|other",),
    settles="Compute the log-probabilities of one batch twice in eval mode with the same micro-batches: they are then "
    "equal bit for "
    "bit, or the kernel is not deterministic.",
)
