"""Log-probabilities of the two sides are shifted by a token against each other.

Logits at a position are of the next token; one side shifts once too often or not at all.

What looks like it
------------------
A BOS token that is counted into the response.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "tokens-differ": "always",
        "tokens-differ/shifted": "always",
        "logprob-gap": "mostly",
        "logprob-gap/gap": "always",
        "recorded-logprobs-wrong": "often",
        "sampling-mismatch": "often",
    },
    needs=("tokens-differ",),
    excludes=("tokens-differ/response|from-one-position|greedy|lengths",),
    settles="Shift the trainer's log-probabilities by one token, either way, and compare again.",
)
