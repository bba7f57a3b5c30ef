"""Some ranks clip the reduced gradient, or clip it at another threshold.

What their optimizers receive is the reduced gradient times a factor below 1 whose norm is the same at every step.

What looks like it
------------------
Different loss scales (`loss-scales-differ`): powers of two.

Known cases
-----------
DeepSpeed#1801 (BLOOM).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/clipped": "always",
        "replica-drift": "always",
        "clip-differs": "often",
        "clip-differs/ranks": "mostly",
    },
    needs=("reduction-mismatch",),
    excludes=("adapter:single",),
    settles="Print max_norm and the norm that clip_grad_norm_ returns on every rank.",
)
