"""The engine's log-probabilities are of the top p or k that it samples from, the trainer's of all tokens.

Each of the engine's is too high by the logarithm of the mass that was kept.

What looks like it
------------------
Bad words or a grammar that the engine leaves out.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "sampling-mismatch": "always",
        "sampling-mismatch/cut-support|sharper": "always",
        "recorded-logprobs-wrong": "often",
        "logprob-gap": "often",
        "logprob-gap/gap": "always",
    },
    needs=("sampling-mismatch",),
    excludes=("sampling-mismatch/temperature|flatter", "weights-not-synced/most"),
    settles="Sample one batch with top_p=1, top_k=-1 and no grammar: the mean of p_train / p_rollout comes back to 1.",
)
