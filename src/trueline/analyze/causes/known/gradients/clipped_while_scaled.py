"""Gradients are clipped while they still have the loss scale.

Their norm is tens of thousands of times as large as it is without, so every step is clipped, and what the scaler leaves
of it after dividing hardly moves a weight.

Known cases
-----------
PyTorch's notes on automatic mixed precision, "Gradient clipping": unscale first.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "norm-misreported": "always",
        "norm-misreported/scaled": "always",
    },
    needs=("norm-misreported",),
    settles="Call scaler.unscale_(optimizer) before clip_grad_norm_, and look whether the loss falls.",
)
