"""A mixture of experts routes the same tokens to other experts in engine and trainer.

A near tie in the router goes one way here and the other way there; each such token has a gap of its own.

What looks like it
------------------
Any gap that comes with the same weights, tokens and settings: attention kernels, precision of a part.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "logprob-gap": "always",
        "logprob-gap/gap": "always",
        "logprob-gap/versions-equal": "mostly",
        "trial-rl:model": "mostly",
    },
    needs=("logprob-gap",),
    excludes=(
        "logprob-gap/passes-differ",
        "logprob-gap-grows/gradually",
        "weights-not-synced/stale|swapped|size|other",
        "tokens-differ/response|from-one-position|shifted|prompt",
        "sampling-mismatch/temperature|cut-support",
        "decode-diverges/grows-along|flat-along",
        "prefill-diverges/decays",
    ),
    settles="Replay the engine's routing in the trainer, if it is a mixture of experts; else compute both sides in "
    "float32, then with "
    "the same attention implementation.",
)
