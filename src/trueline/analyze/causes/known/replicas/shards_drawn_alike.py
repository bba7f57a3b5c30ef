"""Shards of one matrix were drawn from the same seed on the ranks that hold them.

Parameters were initialised after the model was cut, and each rank drew its own part.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "shards-equal": "always",
    },
    needs=("shards-equal",),
    settles="Draw the initial values before the model is cut, from the same seed, and compare the loss.",
)
