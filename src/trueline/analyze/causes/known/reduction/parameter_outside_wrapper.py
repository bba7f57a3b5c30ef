"""Some parameters are not those that were wrapped, so that nobody reduces their gradients.

Added, replaced, cast or loaded with assign=True after DDP was constructed, on its ignore list, or in a part of the
model beside the one that was wrapped.

What looks like it
------------------
A branch that the last micro-batch does not use (`no-sync-at-update`).

Known cases
-----------
pytorch#104336.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "always",
        "gradient-not-reduced/all|some": "often",
        "replica-drift": "always",
        "adapter:ddp|part-in-ddp": "always",
        "sync:on": "always",
        "wrapper:called": "always",
    },
    needs=("gradient-not-reduced",),
    settles="Compare id() of these parameters before wrapping and at the first step; wrap after the last change "
    "to the model.",
)
