"""The rollout engine has weights of its own: none of the trainer's arrive.

A dummy load format, an engine that was started anew, a sync into an object that is not the one that samples.

What looks like it
------------------
All parameters merged or cast in another way than was recorded.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "weights-not-synced": "always",
        "weights-not-synced/most": "always",
        "logprob-gap": "mostly",
        "logprob-gap/gap": "always",
        "logprob-gap/nonsense": "mostly",
        "sampling-mismatch": "often",
        "recorded-logprobs-wrong": "often",
    },
    needs=("weights-not-synced",),
    excludes=("weights-not-synced/some",),
    settles="Generate greedily from one prompt: text without sense says that nothing was loaded. Look at load_format, "
    "and at which "
    "object load_weights is called on.",
)
