"""The two runs call different operations, or connect them differently.

Another version of the model's code, another configuration, a framework that rewrites the model.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "structure-differs": "always",
    },
    needs=("structure-differs",),
    settles="Compare the code at the two lines that are named.",
)
