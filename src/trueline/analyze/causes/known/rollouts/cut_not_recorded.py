"""The engine samples from the top p or k, and records log-probabilities from before that cut.

Both sides agree to the last bit, but improbable tokens never come.

What looks like it
------------------
A temperature below 1 that is not recorded, where the mass above each token was not recorded (`mass_above`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "recorded-logprobs-wrong": "always",
        "recorded-logprobs-wrong/sharper": "always",
        "recorded-logprobs-wrong/cut": "always",
        "recorded-logprobs-wrong/same": "mostly",
    },
    needs=("recorded-logprobs-wrong",),
    excludes=("recorded-logprobs-wrong/flatter", "recorded-logprobs-wrong/mean-above-one"),
    settles="Sample one batch with top_p=1 and top_k=-1: if it is not found there, sample so, or record processed "
    "log-probabilities "
    "and compute the trainer's over the same part of the vocabulary.",
)
