"""The engine records log-probabilities from before its temperature or penalties, and samples after them.

vLLM's `raw_logprobs` (its default), log-probabilities of the logits as the model returns them. Both sides agree to the
last bit, and the tokens are of another distribution; or the trainer divides by the temperature, as it should, and its
distribution is that of the tokens (TRL issue 4159).

What looks like it ------------------ A cut by top-p or top-k that is not recorded either. Where tokens are less likely
than recorded: tokens that were forced and not masked.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "recorded-logprobs-wrong": "always",
        "recorded-logprobs-wrong/sharper|flatter|mean-above-one": "always",
        "recorded-logprobs-wrong/same|as-trainer": "mostly",
        "logprob-gap": "often",
        "logprob-gap/gap": "always",
        "recorded-logprobs-wrong/declared-temperature": "often",
    },
    needs=("recorded-logprobs-wrong",),
    excludes=(
        "recorded-logprobs-wrong/cut",
        "tokens-differ/response|from-one-position|shifted",
        "weights-not-synced/most",
    ),
    settles="Sample one batch at temperature 1 without penalties: if it is not found there, record the processed "
    "log-probabilities "
    "(vLLM: logprobs_mode='processed_logprobs') and divide the trainer's logits by the temperature.",
)
