"""The optimizer updates other parameters than those of the model.

It was made before the model was copied, cast, wrapped or loaded in a way that replaced its parameters.

What looks like it
------------------
An optimizer that holds a part of the model (`optimizer-lacks-parameters`).

Known cases
-----------
accelerate#2665.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "optimizer-detached": "always",
        "optimizer-detached/all": "always",
    },
    needs=("optimizer-detached",),
    settles="Make the optimizer after the last change to the model; compare id(p) of both.",
)
