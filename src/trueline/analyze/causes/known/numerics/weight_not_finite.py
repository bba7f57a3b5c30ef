"""A weight was NaN or infinite before anything used it.

A damaged value in memory, a broken checkpoint, or an update that overflowed.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-nonfinite": "always",
        "worker-nonfinite/loss": "mostly",
        "overflow-origin": "always",
        "overflow-origin/param": "always",
    },
    needs=("worker-nonfinite", "overflow-origin"),
    settles="Load the checkpoint before this step and count values that are not finite in the parameter that is named.",
)
