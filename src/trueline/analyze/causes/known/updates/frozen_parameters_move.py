"""Parameters that are not trained change all the same.

Weight decay on frozen layers, by the optimizer or by hand, momentum from before they were frozen, train() that
unfreezes, or a copy that is written back.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "param-moves-without-gradient": "always",
    },
    needs=("param-moves-without-gradient",),
    settles="Leave frozen parameters out of the optimizer.",
)
