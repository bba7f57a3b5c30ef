"""A sample holds NaN or an infinity.

The input of the model has it before any call does: a division by zero in preprocessing, a broken file, log(0).

What looks like it
------------------
A call that makes it from finite inputs (`operation-undefined`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-nonfinite": "always",
        "worker-nonfinite/loss": "mostly",
        "overflow-origin": "always",
        "overflow-origin/given": "always",
        "values:not-finite": "always",
        "who:some": "mostly",
    },
    needs=("worker-nonfinite", "overflow-origin"),
    excludes=("replica-drift/one",),
    settles="Check torch.isfinite of the batch at this step, before the model.",
)
