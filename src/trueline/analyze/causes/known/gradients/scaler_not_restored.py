"""A checkpoint does not have the gradient scaler, and the loss scale begins anew where the job is started again.

What looks like it
------------------
Ranks whose scales differ (`loss-scales-differ`), where only some of them restore it.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/began-anew": "always",
    },
    needs=("loss-scale-wrong",),
    settles="Print scaler.get_scale() before the checkpoint is saved and after it is loaded.",
)
