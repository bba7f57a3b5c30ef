"""The initialisation leaves a part of the model out, reaches it twice, or does not fill it.

Layers are found by their exact class or by a part of their name, weights are scaled in two places, or a parameter is
made by torch.empty and never filled.

What looks like it
------------------
A layer that is meant to begin otherwise, which is information where it is the first or last. Weights that a checkpoint
did not hold, among others that it did, are not looked at.

Known cases
-----------
openai/CLIP#15, pytorch/examples#909.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "init-differs": "always",
        "init-differs/peers|garbage|nonfinite": "always",
    },
    needs=("init-differs",),
    settles="Print the standard deviation of each weight right after initialisation, and initialise the ones that are "
    "named again with the values of their peers.",
)
