"""Gradients of earlier steps are still there when a step begins.

zero_grad is missing, comes at the wrong place, or is called on another optimizer; or an epoch ends between two updates.

What looks like it
------------------
Gradient accumulation, where the step has several micro-batches.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "grad-accumulates": "always",
        "grad-accumulates/kept|left-over": "always",
    },
    needs=("grad-accumulates",),
    settles="Call optimizer.zero_grad() right after each update.",
)
