"""The engine samples at a temperature that the trainer's log-probabilities are without.

All log-odds differ by one factor.

What looks like it
------------------
A scale of the logits that one implementation has (muP, Cohere, Granite) and the other has not.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "sampling-mismatch": "always",
        "sampling-mismatch/temperature|sharper|flatter": "always",
        "logprob-gap": "mostly",
        "logprob-gap/gap": "always",
    },
    needs=("sampling-mismatch",),
    excludes=("sampling-mismatch/cut-support", "weights-not-synced/most"),
    settles="Divide the trainer's logits by the temperature in both passes: the gap falls to that of rounding.",
)
