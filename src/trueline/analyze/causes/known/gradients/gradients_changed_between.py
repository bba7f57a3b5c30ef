"""Gradients are changed between the micro-batches of a step: divided, unscaled or clipped by value after each.

What looks like it
------------------
Clipping by norm after each micro-batch (`clipping-wrong`), where `clip-differs` names the calls.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "grad-accumulates": "always",
        "grad-accumulates/between-passes": "always",
    },
    needs=("grad-accumulates",),
    settles="Print some elements of a gradient after each backward call, and in front of the next one.",
)
