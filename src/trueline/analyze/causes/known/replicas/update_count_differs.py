"""Ranks make different numbers of updates.

A rank leaves one out or makes one more: a loader that is longer there, a skipped batch, an exception that was caught.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "updates-apart": "always",
    },
    needs=("updates-apart",),
    settles="Print the number of optimizer steps per epoch on every rank; let all ranks stop at the same batch "
    "(join, or drop_last=True).",
)
