"""Ranks run with other versions, switches or environment variables.

Another image, package or flag on a node: results differ in rounding at least, and often in algorithms.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rank-config-differs": "always",
        "rank-config-differs/environment": "always",
    },
    needs=("rank-config-differs",),
    settles="Start all nodes from one image and one environment.",
)
