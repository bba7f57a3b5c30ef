"""A batch that was not finite stays in the running statistics of batch normalisation.

Its update was left out, by a gradient scaler or by code that looks at the loss, and its forward pass was not.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "batch-norm-differs": "always",
        "batch-norm-differs/nonfinite": "always",
    },
    needs=("batch-norm-differs",),
    settles="Look for the first batch after whose forward pass running_var is not finite.",
)
