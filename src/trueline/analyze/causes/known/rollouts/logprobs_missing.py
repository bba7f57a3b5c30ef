"""The engine's log-probabilities of some tokens are missing, and 0 stands in their place.

A streamed answer of which only the first part is kept (ai-dynamo/dynamo#11640), padding that counts as sampled, a
request without `logprobs`.

What looks like it
------------------
Greedy sampling with processed log-probabilities, which are 0 throughout: declare temperature 0.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "recorded-logprobs-wrong": "always",
        "recorded-logprobs-wrong/padded": "always",
        "logprob-gap": "mostly",
        "logprob-gap/gap": "always",
        "sampling-mismatch": "often",
    },
    needs=("recorded-logprobs-wrong",),
    settles="Count the log-probabilities that the engine returns for one response, and its tokens: from where on are "
    "there none? Fill nothing in for those.",
)
