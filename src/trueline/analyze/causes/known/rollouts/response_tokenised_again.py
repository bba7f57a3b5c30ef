"""The trainer has other tokens than were sampled: the text was tokenised once more.

Decoding and encoding a text need not give back its tokens. Also tool output that was reformatted, a response cut
elsewhere.

What looks like it
------------------
Weights that are replaced while a response is sampled.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "tokens-differ": "always",
        "tokens-differ/response|from-one-position": "always",
        "decode-diverges": "often",
        "logprob-gap": "mostly",
        "logprob-gap/gap": "always",
        "recorded-logprobs-wrong": "often",
        "sampling-mismatch": "often",
    },
    needs=("tokens-differ",),
    excludes=("tokens-differ/shifted|greedy|lengths",),
    settles="Compare the ids that the engine returned with those that the trainer gets, one by one; hand ids over, "
    "never text.",
)
