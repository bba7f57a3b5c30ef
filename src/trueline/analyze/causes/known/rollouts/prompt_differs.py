"""Engine and trainer have another prompt, or other positions for it.

BOS, chat template, tool calls that the template clears, truncation, position ids under left padding.

What looks like it
------------------
A prefill kernel that is wrong.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "prefill-diverges": "mostly",
        "prefill-diverges/decays": "always",
        "tokens-differ/prompt": "always",
        "tokens-differ": "often",
        "logprob-gap": "mostly",
        "logprob-gap/gap": "always",
    },
    needs=("prefill-diverges", "tokens-differ"),
    excludes=("tokens-differ/response|from-one-position|shifted|lengths", "logprob-gap/passes-differ"),
    settles="Print the prompt's token ids and position ids as both sides have them, and compare them one by one.",
)
