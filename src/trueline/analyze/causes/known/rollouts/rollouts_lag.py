"""Rollouts are of older weights than the loop is meant to use.

Weights are handed over after sampling, a queue is longer than thought, a sync is skipped.

What looks like it
------------------
A version that is counted where weights leave instead of where they arrive.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "policy-lag": "always",
        "policy-lag/lag": "always",
        "policy-lag/gap-by-lag": "mostly",
        "logprob-gap": "often",
        "logprob-gap/gap": "always",
        "trial-rl:weights": "always",
    },
    needs=("policy-lag",),
    excludes=("policy-lag/ahead",),
    settles="Train three steps at learning rate 0: the gap is then that of rounding, whatever the versions say.",
)
