"""Some parameters do not reach the rollout engine, or the wrong ones.

Names that do not match, merged parameters in another order, shards that were not gathered, tied weights, a transfer
that is not waited for.

What looks like it
------------------
Rollouts of an earlier version, where syncs are not recorded.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "weights-not-synced": "always",
        "weights-not-synced/some": "always",
        "weights-not-synced/stale|base|swapped|size|other": "mostly",
        "logprob-gap": "often",
        "logprob-gap/gap": "always",
        "logprob-gap-grows": "often",
        "logprob-gap-grows/gradually": "mostly",
        "trial-rl:weights": "always",
    },
    needs=("weights-not-synced", "logprob-gap-grows"),
    excludes=("weights-not-synced/most",),
    settles="Copy the named parameters to the engine by hand, and compare digests again.",
)
