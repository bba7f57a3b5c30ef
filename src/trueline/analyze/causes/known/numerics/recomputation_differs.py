"""Activation checkpointing computes another function in the backward pass than the forward pass did.

Random numbers are drawn anew, or something that the function reads has another value by then: a counter, a flag, a
weight or buffer that is changed in place, the format of autocast, the power iteration of `spectral_norm`.

What looks like it
------------------
Weights that are overwritten between two steps: then what a step begins with is not what the update before left.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={"recompute-differs": "always"},
    needs=("recompute-differs",),
    settles="Train some steps with activation checkpointing off and the same seeds: the gradients must be equal.",
)
