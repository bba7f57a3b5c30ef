"""The weights were not restored where the job was started again.

A checkpoint whose names have another prefix and that is loaded with strict=False, one that is loaded into another copy
of the model, or weights that are drawn after it was loaded: some or all of them begin anew.

What looks like it
------------------
Data, or a loss, that are others since the restart: then weights are as they were left.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-spike": "mostly",
        "loss-spike/weights-other": "always",
        "grad-spike": "often",
        "grad-spike/weights-other": "always",
    },
    needs=("loss-spike/weights-other", "grad-spike/weights-other"),
    settles="Print what load_state_dict(…, strict=False) returns, and a checksum of the weights before they are saved "
    "and after they are loaded.",
)
