"""Tokens that the engine did not sample count as sampled.

A tool's output, a forced stop, a prefix of the answer, constrained decoding: they are less likely than sampled ones
are.

What looks like it
------------------
A temperature above 1 that is not recorded.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "recorded-logprobs-wrong": "always",
        "recorded-logprobs-wrong/flatter": "always",
        "recorded-logprobs-wrong/same": "mostly",
    },
    needs=("recorded-logprobs-wrong",),
    excludes=("recorded-logprobs-wrong/sharper", "recorded-logprobs-wrong/mean-above-one"),
    settles="Print the tokens with the lowest log-probability of one response, with their mask, and look which of "
    "them the "
    "engine did not sample.",
)
