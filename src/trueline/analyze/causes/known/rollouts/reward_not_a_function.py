"""The reward is no function of the text.

White space, truncation, a time limit, a model that scores with dropout on or depends on its batch.

What looks like it
------------------
Rewards that were scored again by another version of the scorer.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reward-differs": "always",
        "reward-differs/rule|model": "always",
    },
    needs=("reward-differs",),
    excludes=("reward-differs/group-law",),
    settles="Score one of these texts ten times alone: equal each time says that its batch or its text was another.",
)
