"""The two runs start from different weights.

Another checkpoint, initialisation, conversion or merge.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "weight-differs": "always",
        "first-divergence": "often",
        "first-divergence/parameters": "always",
    },
    needs=("weight-differs",),
    settles="Compare the parameters that are named in both checkpoints.",
)
