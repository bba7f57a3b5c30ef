"""The optimizer lacks parameters that are to train.

It was made before layers were unfrozen, replaced or untied, from a list or groups without some of them, or from the
part of the model that is frozen.

What looks like it
------------------
Layers frozen on purpose.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "optimizer-detached": "always",
        "optimizer-detached/unfrozen|replaced|untied|last|ungrouped|frozen": "always",
    },
    needs=("optimizer-detached",),
    settles="Print the names of the parameters with requires_grad whose id() is in no group of the optimizer.",
)
