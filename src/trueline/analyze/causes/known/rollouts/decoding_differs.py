"""Decoding loses what prefill has: the cache, rotary positions, or the kernel for one token at a time.

The first token agrees, later ones less and less.

What looks like it
------------------
Weights that are replaced while a response is sampled.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "decode-diverges": "always",
        "decode-diverges/grows-along|flat-along": "often",
        "logprob-gap": "often",
        "logprob-gap/gap": "always",
        "trial-rl:cache": "often",
        "trial-rl:decoding": "often",
    },
    needs=("decode-diverges",),
    excludes=(
        "tokens-differ/response|from-one-position|shifted",
        "prefill-diverges/decays",
        "policy-lag/gap-by-lag",
        "logprob-gap/passes-differ",
    ),
    settles="Sample with max_new_tokens = 1 (the gap vanishes), then without a cache or with another attention "
    "backend.",
)
