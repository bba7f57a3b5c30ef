"""Gradients of micro-batches are cleared before the update: only the last one of each step counts.

zero_grad is called in front of each backward pass of an accumulation.

What looks like it
------------------
A loss that is divided once too often.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "loss-scale-wrong": "always",
        "loss-scale-wrong/cleared-early": "always",
    },
    needs=("loss-scale-wrong",),
    settles="Call optimizer.zero_grad() once an update, right after it.",
)
