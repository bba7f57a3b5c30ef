"""A rank trains with its model in evaluation mode.

It evaluated without the others, or left an evaluation early, and did not call ``model.train()`` again: dropout is off
there, and normalisation uses running statistics.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rank-config-differs": "always",
        "rank-config-differs/mode": "always",
        "who:some": "mostly",
    },
    needs=("rank-config-differs",),
    settles="Print model.training on every rank at the step that is named.",
)
