"""Engine and trainer compute the same layers otherwise: attention, norms, precision of a part, scales of weights.

The gap is there at each token alike, with the same weights, tokens and settings.

What looks like it
------------------
Experts of a mixture that are chosen otherwise.
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
    settles="Compute both sides in float32, then with the same attention implementation, and see when the gap falls "
    "to 1e-6.",
)
